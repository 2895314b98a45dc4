"""Targets for sources: greedy and beam search, a position a step, with cached keys and values.

Letters: B sentences still searched, S source length, W hypotheses a sentence, N = B W, T tokens
written, V vocabulary, C candidates a sentence.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor

from harness.model.layers import Cache, Context
from harness.model.transformer import Transformer


@torch.no_grad()
def decode(
    model: Transformer,
    source_BS: Tensor,
    source_mask_BS: Tensor | None,
    *,
    bos: int,
    eos: int,
    longest: int,
    beam: int = 1,
    length_penalty: float = 1.0,
    banned: Collection[int] = (),
) -> list[list[int]]:
    """The best target of each source, without bos and eos, by the beam search of fairseq's
    `SequenceGenerator`; beam 1 is greedy search.

    Hypotheses start from `bos` and are ranked by the sum of their tokens' log-probabilities; of
    equals the one whose beginning ranked higher stands first, then the one with the lower last
    token. In each step every live hypothesis is continued by every token that is not `banned`
    (banning leaves the other probabilities as they are); in step `longest` by `eos` only. Of these
    candidates those end that have `eos` and are among the best `beam`; the best `beam` of those
    without `eos` live on. A sentence is done when `beam` hypotheses have ended, or after step
    `longest`. Its target is the ended hypothesis with the highest score

        sum of log-probabilities / length ** length_penalty

    where the length counts eos, and of equals the one that ended first. This is fairseq's
    `lenpen`, not the ((5 + length) / 6) ** alpha of arXiv:1609.08144 eq. 14.

    The model computes in evaluation mode and is left in the mode in which it came. No sentence's
    target depends on the others in the batch, and a mask is None where all are tokens.
    """
    assert longest > 0 and beam > 0 and eos not in banned
    training = model.training
    model.eval()
    search = _Search(model, source_BS, source_mask_BS, bos)
    for length in range(1, longest + 1):
        log_NV = search.step()
        log_NV[:, list(banned)] = -math.inf
        if length == longest:
            log_NV[:, torch.arange(log_NV.shape[1], device=log_NV.device) != eos] = -math.inf
        search.advance(log_NV, eos, beam, length_penalty, longest)
        if not search.live:
            break
    model.train(training)
    return search.targets


class _Search:
    """The state of a batch's search: live hypotheses, and the best that has ended, of each
    sentence."""

    def __init__(
        self, model: Transformer, source_BS: Tensor, mask_BS: Tensor | None, bos: int
    ) -> None:
        self.decoder, self.output = model.stacks["decoder"], model.output
        memory_BSD = model.stacks["encoder"](source_BS, Context(mask_BS))
        self.context = Context(None, memory_BSD, mask_BS, Cache())
        sentences = len(source_BS)
        self.targets: list[list[int]] = [[] for _ in range(sentences)]
        self.sentence_B = torch.arange(sentences, device=source_BS.device)
        self.written_BWT = torch.full_like(self.sentence_B, bos)[:, None, None]
        self.sum_BW = memory_BSD.new_zeros(sentences, 1, dtype=_precise(memory_BSD.dtype))
        self.best_B = torch.full_like(self.sum_BW[:, 0], -math.inf)
        self.ended_B = torch.zeros_like(self.sentence_B)

    @property
    def live(self) -> bool:
        return len(self.sentence_B) > 0

    def step(self) -> Tensor:
        """Log-probabilities of each hypothesis' next token, of shape N x V."""
        last_N1 = self.written_BWT[..., -1].reshape(-1, 1)
        logits_NV = self.output(self.decoder(last_N1, self.context)[:, 0])
        return torch.log_softmax(logits_NV, dim=-1, dtype=_precise(logits_NV.dtype))

    def advance(
        self, log_NV: Tensor, eos: int, beam: int, length_penalty: float, longest: int
    ) -> None:
        """Ends hypotheses, chooses those that live on, and lets go of sentences that are done."""
        sentences, width, length = self.written_BWT.shape  # as long as the new ones without bos
        vocabulary = log_NV.shape[1]
        sum_BC = (self.sum_BW.reshape(-1, 1) + log_NV).view(sentences, -1)
        # At most `beam` candidates have eos: twice as many hold `beam` others.
        sum_BC, at_BC = _largest(sum_BC, min(2 * beam, sum_BC.shape[1]))
        parent_BC, token_BC = at_BC // vocabulary, at_BC % vocabulary
        self._end(sum_BC[:, :beam], parent_BC, token_BC == eos, length, length_penalty)

        # False before True: those without eos come first, best first.
        order_BW = (token_BC == eos).byte().sort(stable=True).indices
        order_BW = order_BW[:, : min(beam, width * (vocabulary - 1))]
        self.sum_BW = sum_BC.gather(1, order_BW)
        parent_BW, token_BW = parent_BC.gather(1, order_BW), token_BC.gather(1, order_BW)

        # Sums only fall, so that a live hypothesis scores at most this at any later length.
        divisor = max((length + 1) ** length_penalty, longest**length_penalty)
        lost_B = self.best_B >= self.sum_BW[:, 0] / divisor
        stay_B = (~lost_B & (self.ended_B < beam)).nonzero()[:, 0]
        if length == longest:
            stay_B = stay_B[:0]
        self._continue(stay_B, parent_BW, token_BW)

    def _end(
        self,
        sum_BW: Tensor,
        parent_BW: Tensor,
        eos_BW: Tensor,
        length: int,
        length_penalty: float,
    ) -> None:
        ends_BW = eos_BW[:, : sum_BW.shape[1]] & (sum_BW > -math.inf)
        self.ended_B = self.ended_B + ends_BW.sum(1)
        # Those of one step are equally long: the first is the best.
        first_B1 = ends_BW.byte().argmax(1, keepdim=True)
        score_B = sum_BW.gather(1, first_B1)[:, 0] / length**length_penalty
        better_B = ends_BW.any(1) & (score_B > self.best_B)
        self.best_B = torch.where(better_B, score_B, self.best_B)
        parent_B = parent_BW.gather(1, first_B1)[:, 0]
        for row in better_B.nonzero()[:, 0].tolist():
            written_T = self.written_BWT[row, parent_B[row], 1:]
            self.targets[int(self.sentence_B[row])] = written_T.tolist()

    def _continue(self, stay_B: Tensor, parent_BW: Tensor, token_BW: Tensor) -> None:
        sentences, width, _ = self.written_BWT.shape
        parent_BW, token_BW = parent_BW[stay_B], token_BW[stay_B]
        before_BWT = self.written_BWT[stay_B[:, None], parent_BW]
        self.written_BWT = torch.cat((before_BWT, token_BW[..., None]), dim=2)
        self.sum_BW = self.sum_BW[stay_B]
        if len(stay_B) == sentences and width == 1 == token_BW.shape[1]:
            return  # greedy, and nobody left: all rows stay where they are
        self.best_B, self.ended_B = self.best_B[stay_B], self.ended_B[stay_B]
        self.sentence_B = self.sentence_B[stay_B]
        context = self.context
        context.cache.select((width * stay_B[:, None] + parent_BW).flatten(), stay_B)
        mask_BS = context.memory_mask_BS
        self.context = context._replace(
            memory_BSD=context.memory_BSD[stay_B],
            memory_mask_BS=None if mask_BS is None else mask_BS[stay_B],
        )


def _largest(x_BC: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row and where they stand, largest first, of equals the first.

    torch.topk does not say which of equals it takes.
    """
    least_B1 = x_BC.topk(count).values[:, -1:]
    row, column = (~(x_BC < least_B1)).nonzero(as_tuple=True)  # at least `count` a row
    order = x_BC[row, column].sort(descending=True, stable=True).indices
    order = order[row[order].sort(stable=True).indices]
    start_B = torch.searchsorted(row, torch.arange(len(x_BC), device=row.device))
    chosen_BC = order[start_B[:, None] + torch.arange(count, device=row.device)]
    return x_BC.gather(1, column[chosen_BC]), column[chosen_BC]


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
