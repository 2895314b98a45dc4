"""Encoder-only, decoder-only and encoder-decoder Transformers over one flat list of blocks a stack.

Letters as in layers.py, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from harness.model.layers import Attention, Context, FeedForward, MakeNorm, Residual
from harness.schemes import Place, StackFacts, Wiring

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


class Stack(nn.Module):
    """Embedding with sinusoidal positions, blocks, and a final norm if the scheme asks for one."""

    def __init__(
        self,
        blocks: list[Block],
        final: nn.Module | None,
        width: int,
        vocabulary: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(blocks)  # flat: nesting meets Python's recursion limit
        self.norm = final
        self.dropout = nn.Dropout(dropout)
        self.width = width

    def forward(self, tokens_BT: Tensor, context: Context) -> Tensor:
        positions_TD = _sinusoids(tokens_BT.shape[1], self.width, tokens_BT.device)
        x_BTD = self.dropout(math.sqrt(self.width) * self.embedding(tokens_BT) + positions_TD)
        for block in self.blocks:
            x_BTD = block(x_BTD, context)
        return x_BTD if self.norm is None else self.norm(x_BTD)


class Transformer(nn.Module):
    """A Transformer wired by `wire`; logits are a linear, untied map of the last stack's output.

    `vocabularies` are the sizes of source and target; a one-stack model uses the second. Without
    `cross_attention` the decoder of a pair is alone with its constants: the encoder stands idle.
    """

    def __init__(
        self,
        wire: Callable[[Place], Wiring],
        facts: StackFacts,
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
    ) -> None:
        super().__init__()
        make = NORMS[norm]
        paired = encoders > 0 and decoders > 0
        self.stacks = nn.ModuleDict()
        for stack, layers in (("encoder", encoders), ("decoder", decoders)):
            if not layers:
                continue
            reads = paired and stack == "decoder" and cross_attention
            kinds = ("self", "cross", "ffn") if reads else ("self", "ffn")
            blocks = []
            for layer in range(1, layers + 1):
                shared: dict[str, nn.Parameter] = {}
                block = Block()
                for kind in kinds:
                    wiring = wire(Place(kind, stack, layer, encoders, decoders))
                    f = _function(kind, stack, width, heads, ffn)
                    block[kind] = Residual(f, wiring, make, width, dropout, shared)
                blocks.append(block)
            vocabulary = vocabularies[0 if paired and stack == "encoder" else 1]
            final = make(width) if facts.final_norm else None
            self.stacks[stack] = Stack(blocks, final, width, vocabulary, dropout)
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


def _function(kind: str, stack: str, width: int, heads: int, ffn: int) -> Attention | FeedForward:
    if kind == "ffn":
        return FeedForward(width, ffn)
    causal = stack == "decoder" and kind == "self"
    return Attention(width, heads, causal=causal, cross=kind == "cross")


def _sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Positions of arXiv:1706.03762 section 3.5, shape T x D."""
    position_T1 = torch.arange(length, device=device)[:, None]
    even = torch.arange(0, width, 2, device=device)
    angle = position_T1 * torch.exp(even * (-math.log(10000.0) / width))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :width]
