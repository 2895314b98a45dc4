"""Targets for sources: greedy and beam search, a position a step, with cached keys and values.

Letters: B sentences still searched, S source length, W live hypotheses a sentence, N = B W of all,
T tokens written, V vocabulary, C candidates a sentence.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

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
    longest: int | Sequence[int],
    beam: int = 1,
    length_penalty: float = 1.0,
    banned: Collection[int] = (),
) -> list[list[int]]:
    """The best target of each source, without bos and eos, by the beam search of fairseq's
    `SequenceGenerator`; a beam of 1 is greedy search.

    Hypotheses start from `bos` and are ranked by the sum of their tokens' log-probabilities; of
    equals the one whose beginning ranked higher stands first, then the one with the lower token.
    In each step every live hypothesis is continued by every token that is not `banned` (which
    leaves the others' probabilities as they are); in step `longest`, one for all or one a
    sentence, by `eos` only. Of these candidates those end that have `eos` and are among the best
    `beam`; the best `beam` of those without `eos` live on. A sentence is done when `beam`
    hypotheses have ended, or after step `longest`. Its target is the ended hypothesis with the
    highest score

        sum of log-probabilities / length ** length_penalty

    whose length counts eos; of equals, the first that ended. This is fairseq's `lenpen`, not the
    ((5 + length) / 6) ** alpha of arXiv:1609.08144 eq. 14. A sentence whose live hypotheses cannot
    score higher any more is left early, which changes no target.

    The model computes in evaluation mode and gets its mode back. Other sentences of the batch
    change nothing; a mask is True at tokens. Where log-probabilities are NaN, nothing is written.
    """
    limits = [longest] * len(source_BS) if isinstance(longest, int) else list(longest)
    assert min(limits) > 0 and beam > 0 and eos not in banned
    training = model.training
    model.eval()
    rules = _Rules(eos, beam, length_penalty, list(banned))
    search = _Search(model, source_BS, source_mask_BS, bos, limits, rules)
    while len(search.sentence_B):
        search.step()
    model.train(training)
    return search.targets


class _Rules(NamedTuple):
    eos: int
    beam: int
    length_penalty: float
    banned: list[int]


class _Search:
    """Live hypotheses, and the best that has ended, of each sentence that is not done."""

    def __init__(
        self,
        model: Transformer,
        source_BS: Tensor,
        mask_BS: Tensor | None,
        bos: int,
        longest: list[int],
        rules: _Rules,
    ) -> None:
        self.decoder, self.output, self.rules = model.stacks["decoder"], model.output, rules
        memory_BSD = model.stacks["encoder"](source_BS, Context(mask_BS))
        self.context = Context(None, memory_BSD, mask_BS, Cache())
        sentences, dtype = len(source_BS), _precise(memory_BSD.dtype)
        self.targets: list[list[int]] = [[] for _ in range(sentences)]
        self.sentence_B = torch.arange(sentences, device=source_BS.device)
        self.written_BWT = torch.full_like(self.sentence_B, bos)[:, None, None]
        self.sum_BW = memory_BSD.new_zeros(sentences, 1, dtype=dtype)
        self.best_B = memory_BSD.new_full((sentences,), -math.inf, dtype=dtype)
        self.ended_B = torch.zeros_like(self.sentence_B)
        self.longest_B = torch.tensor(longest, device=source_BS.device)

    def step(self) -> None:
        """One more token for all that live."""
        eos, beam, length_penalty, _ = self.rules
        length = self.written_BWT.shape[2]  # of what is written now, without bos
        log_BWV = self._log_probabilities()
        vocabulary = log_BWV.shape[2]
        sum_BC = (self.sum_BW[..., None] + log_BWV).flatten(1)
        others = min(beam, sum_BC.shape[1] - log_BWV.shape[1])
        # At most `beam` candidates have eos: twice as many hold all others that may live on.
        sum_BC, at_BC = _largest(sum_BC, min(2 * beam, sum_BC.shape[1]))
        parent_BC, token_BC = at_BC // vocabulary, at_BC % vocabulary
        eos_BC = token_BC == eos
        self._end(sum_BC[:, :beam], parent_BC, eos_BC[:, :beam], length**length_penalty)

        live_BW = eos_BC.byte().sort(stable=True).indices[:, :others]  # no eos before eos
        self.sum_BW = sum_BC.gather(1, live_BW)
        # A sum can only fall: divided by the largest divisor it bounds all scores to come.
        most_B = (self.longest_B.to(sum_BC.dtype) ** length_penalty).clamp(
            min=(length + 1) ** length_penalty
        )
        done_B = (self.ended_B >= beam) | (self.best_B >= self.sum_BW[:, 0] / most_B)
        stay_B = (~done_B & (self.longest_B > length)).nonzero()[:, 0]
        self._go_on(stay_B, parent_BC.gather(1, live_BW), token_BC.gather(1, live_BW))

    def _log_probabilities(self) -> Tensor:
        """Of each hypothesis' next token, of shape B x W x V."""
        sentences, width, _ = self.written_BWT.shape
        tokens_N1 = self.written_BWT[..., -1].reshape(-1, 1)
        logits_NV = self.output(self.decoder(tokens_N1, self.context)[:, 0])
        log_NV = torch.log_softmax(logits_NV, dim=-1, dtype=_precise(logits_NV.dtype))
        log_NV[:, self.rules.banned] = -math.inf
        log_BWV = log_NV.unflatten(0, (sentences, width))
        last_B11 = (self.longest_B == self.written_BWT.shape[2])[:, None, None]
        tokens_V = torch.arange(log_BWV.shape[2], device=log_BWV.device)
        return log_BWV.masked_fill(last_B11 & (tokens_V != self.rules.eos), -math.inf)

    def _end(self, sum_BC: Tensor, parent_BC: Tensor, eos_BC: Tensor, divisor: float) -> None:
        """Counts the candidates that end, and keeps the best where it beats what has ended."""
        ends_BC = eos_BC & (sum_BC > -math.inf)
        self.ended_B = self.ended_B + ends_BC.sum(1)
        first_B1 = ends_BC.byte().argmax(1, keepdim=True)  # equally long: the first is the best
        score_B = sum_BC.gather(1, first_B1)[:, 0] / divisor
        better_B = ends_BC.any(1) & (score_B > self.best_B)
        self.best_B = torch.where(better_B, score_B, self.best_B)
        parent_B = parent_BC.gather(1, first_B1)[:, 0]
        written_BT = self.written_BWT[better_B, parent_B[better_B], 1:]
        sentences = self.sentence_B[better_B].tolist()
        for sentence, target in zip(sentences, written_BT.tolist(), strict=True):
            self.targets[sentence] = target

    def _go_on(self, stay_B: Tensor, parent_BW: Tensor, token_BW: Tensor) -> None:
        """With the sentences that stay, and each one's hypotheses of these parents and tokens."""
        sentences, width, _ = self.written_BWT.shape
        parent_BW, token_BW = parent_BW[stay_B], token_BW[stay_B]
        before_BWT = self.written_BWT[stay_B[:, None], parent_BW]
        self.written_BWT = torch.cat((before_BWT, token_BW[..., None]), dim=2)
        if len(stay_B) == sentences and width == token_BW.shape[1] == 1:
            return  # every row stays where it is
        self.sum_BW, self.best_B = self.sum_BW[stay_B], self.best_B[stay_B]
        self.ended_B, self.sentence_B = self.ended_B[stay_B], self.sentence_B[stay_B]
        self.longest_B = self.longest_B[stay_B]
        context, mask_BS = self.context, self.context.memory_mask_BS
        context.cache.select((width * stay_B[:, None] + parent_BW).flatten(), stay_B)
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
