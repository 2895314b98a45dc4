"""Encoder-only, decoder-only and encoder-decoder Transformers over one flat list of blocks a stack.

Letters as in layers.py, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from harness.model.layers import Attention, Context, Factors, FeedForward, MakeNorm, Residual
from harness.schemes import Place, StackFacts, Wiring, kinds

NORMS: dict[str, MakeNorm] = {
    "layernorm": nn.LayerNorm,
    "rmsnorm": lambda width: nn.RMSNorm(width, eps=1e-5),  # LayerNorm's epsilon
}


class Block(nn.ModuleDict):
    """One layer: its residual sublayers by name, in order."""

    def forward(self, x0_BTD: Tensor, context: Context) -> Tensor:
        x_BTD = x0_BTD
        for residual in self.values():
            x_BTD = residual(x_BTD, x0_BTD, context)
        return x_BTD


class Dense(nn.Module):
    """Learned combinations of the embedding and of all layers' normalised outputs: one for the
    input of each layer, and one for what follows the last. Each starts as their mean."""

    def __init__(self, layers: int, width: int, norm: MakeNorm) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm(width) for _ in range(layers))
        self.weights = nn.ParameterList(
            torch.full((1 + before,), 1 / (1 + before)) for before in range(layers + 1)
        )

    def forward(self, embedded_BTD: Tensor, outputs: list[Tensor]) -> Tensor:
        sources = [embedded_BTD, *outputs]
        weights = self.weights[len(outputs)]
        return (torch.stack(sources, dim=-1) * weights).sum(-1)


class Stack(nn.Module):
    """Embedding with sinusoidal positions, blocks, and what the scheme says of the whole stack."""

    def __init__(
        self,
        blocks: list[Block],
        facts: StackFacts,
        norm: MakeNorm,
        width: int,
        vocabulary: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.embedding_norm = norm(width) if facts.embedding_norm else None
        self.blocks = nn.ModuleList(blocks)  # flat: nesting meets Python's recursion limit
        self.dense = Dense(len(blocks), width, norm) if facts.dense else None
        self.norm = norm(width) if facts.final_norm else None
        self.dropout = nn.Dropout(dropout)
        self.width, self.facts = width, facts

    def forward(self, tokens_BT: Tensor, context: Context) -> Tensor:
        before = 0 if context.cache is None else context.cache.length
        length = before + tokens_BT.shape[1]
        positions_TD = _sinusoids(length, self.width, tokens_BT.device)[before:]
        x_BTD = math.sqrt(self.width) * self.embedding(tokens_BT) + positions_TD
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)
        x_BTD = self.dropout(x_BTD)
        x_BTD = self._through(x_BTD, context) if self.dense is None else self._mixed(x_BTD, context)
        return x_BTD if self.norm is None else self.norm(x_BTD)

    def _through(self, x_BTD: Tensor, context: Context) -> Tensor:
        for block in self.blocks:
            x_BTD = block(x_BTD, context)
        return x_BTD

    def _mixed(self, embedded_BTD: Tensor, context: Context) -> Tensor:
        outputs: list[Tensor] = []
        for block, norm in zip(self.blocks, self.dense.norms, strict=True):
            outputs.append(norm(block(self.dense(embedded_BTD, outputs), context)))
        return self.dense(embedded_BTD, outputs)


class Transformer(nn.Module):
    """A Transformer wired by `wire`; logits are a linear, untied map of the last stack's output.

    `facts` is asked at each stack's first place. `vocabularies` are the sizes of source and target;
    a one-stack model uses the second. Without `cross_attention` the decoder of a pair is alone with
    its constants: the encoder stands idle.
    """

    def __init__(
        self,
        wire: Callable[[Place], Wiring],
        facts: Callable[[Place], StackFacts],
        *,
        encoders: int,
        decoders: int,
        width: int,
        heads: int,
        ffn: int,
        norm: Literal["layernorm", "rmsnorm"],
        dropout: float,
        vocabularies: tuple[int, int],
        cross_attention: bool = True,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        make = NORMS[norm]
        paired = encoders > 0 and decoders > 0
        self.stacks = nn.ModuleDict()
        for stack, layers in (("encoder", encoders), ("decoder", decoders)):
            if not layers:
                continue
            blocks = []
            for layer in range(1, layers + 1):
                shared: dict[str, nn.Parameter] = {}
                block = Block()
                for kind in kinds(stack, cross=paired and cross_attention):
                    wiring = wire(Place(kind, stack, layer, encoders, decoders))
                    f = _function(kind, stack, width, heads, ffn, make if qk_norm else None)
                    block[kind] = Residual(f, wiring, make, width, dropout, shared)
                blocks.append(block)
            vocabulary = vocabularies[0 if paired and stack == "encoder" else 1]
            said = facts(Place("self", stack, 1, encoders, decoders))
            self.stacks[stack] = Stack(blocks, said, make, width, vocabulary, dropout)
        self.output = nn.Linear(width, vocabularies[1], bias=False)

    def forward(
        self,
        inputs_BT: Tensor,
        mask_BT: Tensor | None = None,
        source_BS: Tensor | None = None,
        source_mask_BS: Tensor | None = None,
    ) -> Tensor:
        """Logits of shape B x T x V."""
        return self.output(self.features(inputs_BT, mask_BT, source_BS, source_mask_BS))

    def features(
        self,
        inputs_BT: Tensor,
        mask_BT: Tensor | None = None,
        source_BS: Tensor | None = None,
        source_mask_BS: Tensor | None = None,
    ) -> Tensor:
        """The last stack's output, after its final norm, of shape B x T x D."""
        context = Context(mask_BT)
        if source_BS is not None:
            memory_BSD = self.stacks["encoder"](source_BS, Context(source_mask_BS))
            context = Context(mask_BT, memory_BSD, source_mask_BS)
        last = "decoder" if "decoder" in self.stacks else "encoder"
        return self.stacks[last](inputs_BT, context)

    @property
    def residuals(self) -> list[Residual]:
        """All sublayers, in order."""
        blocks = [block for stack in self.stacks.values() for block in stack.blocks]
        return [residual for block in blocks for residual in block.values()]

    def factors(self) -> dict[nn.Parameter, Factors]:
        """What the optimizer's rate and epsilon are multiplied by, where that is not 1."""
        found = {p: own for residual in self.residuals for p, own in residual.factors()}
        return {parameter: own for parameter, own in found.items() if own != Factors()}

    def flops(self, targets: int, sources: int = 0) -> int:
        """Operations of one forward pass of one sequence, matrix products only, two a multiply-add.

        Scores count in full under a causal mask too, as a dense kernel computes them.
        """
        total = 2 * targets * self.output.weight.numel()
        for name, stack in self.stacks.items():
            length = sources if name == "encoder" and sources else targets
            for residual in (r for block in stack.blocks for r in block.values()):
                if isinstance(residual.f, FeedForward):
                    total += (
                        2 * length * (residual.f.up.weight.numel() + residual.f.down.weight.numel())
                    )
                    continue
                keys = sources if residual.f.cross else length
                total += 4 * stack.width * (stack.width * (length + keys) + length * keys)
        return total


def _function(
    kind: str, stack: str, width: int, heads: int, ffn: int, norm: MakeNorm | None
) -> Attention | FeedForward:
    if kind == "ffn":
        return FeedForward(width, ffn)
    causal = stack == "decoder" and kind == "self"
    return Attention(width, heads, causal=causal, cross=kind == "cross", norm=norm)


def _sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Positions of arXiv:1706.03762 section 3.5, shape T x D."""
    position_T1 = torch.arange(length, device=device)[:, None]
    even = torch.arange(0, width, 2, device=device)
    angle = position_T1 * torch.exp(even * (-math.log(10000.0) / width))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :width]
