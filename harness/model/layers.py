"""Attention, feed-forward, and the one interpreter of a Wiring.

Letters: B batch, T target length, S source length, D width, H heads, K head width, F inner width.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.schemes import Coefficient, Learned, Wiring

MakeNorm = Callable[[int], nn.Module]


class Context(NamedTuple):
    """What a block sees beside its stream. Masks are True at tokens, None where all are.

    With a cache the stream holds the next position only, one row a hypothesis.
    """

    mask_BT: Tensor | None = None
    memory_BSD: Tensor | None = None
    memory_mask_BS: Tensor | None = None
    cache: "Cache | None" = None


class Factors(NamedTuple):
    """What the optimizer's rate and epsilon are multiplied by."""

    lr: float = 1.0
    eps: float = 1.0


class Attention(nn.Module):
    """Multi-head attention with separate projections, so that each has its own Xavier deviation.

    With `norm`, queries and keys are normalised over the whole width, as in OLMo 2
    (arXiv:2501.00656 section 3.3).
    """

    def __init__(
        self, width: int, heads: int, *, causal: bool, cross: bool, norm: MakeNorm | None = None
    ) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.q_norm, self.k_norm = (norm(width) if norm else None for _ in "qk")
        self.heads, self.causal, self.cross = heads, causal, cross
        self.inner_width = width

    def forward(self, x_BTD: Tensor, context: Context, inner: Callable[[Tensor], Tensor]) -> Tensor:
        source_BSD = context.memory_BSD if self.cross else x_BTD
        mask_BS = context.memory_mask_BS if self.cross else context.mask_BT
        assert source_BSD is not None, "cross-attention without memory"
        q_BTD = self.q(x_BTD)
        if self.q_norm is not None:
            q_BTD = self.q_norm(q_BTD)
        cache = context.cache
        k_BHSK, v_BHSK = self.read(source_BSD) if cache is None else cache.read(self, source_BSD)
        # Hypotheses of one sentence, rows of the stream, are positions before its one memory.
        q_BHTK = self._split(q_BTD, len(k_BHSK))
        # Padding stands at the end: under a causal mask no token sees it.
        mask = None if self.causal or mask_BS is None else mask_BS[:, None, None, :]
        heads_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BHSK, v_BHSK, attn_mask=mask, is_causal=self.causal and cache is None
        )
        return self.o(inner(heads_BHTK.transpose(1, 2).reshape(x_BTD.shape)))

    def read(self, source_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a source, each of shape B x H x S x K."""
        k_BSD = self.k(source_BSD)
        if self.k_norm is not None:
            k_BSD = self.k_norm(k_BSD)
        sentences = len(source_BSD)
        return self._split(k_BSD, sentences), self._split(self.v(source_BSD), sentences)

    def weights(self, x_BTD: Tensor, context: Context) -> Tensor:
        """The weights of the values that `forward` sums, of shape B x H x T x S; of
        cross-attention, without a cache."""
        assert self.cross and context.memory_BSD is not None
        k_BHSK, _ = self.read(context.memory_BSD)
        q_BTD = self.q(x_BTD)
        if self.q_norm is not None:
            q_BTD = self.q_norm(q_BTD)
        q_BHTK = self._split(q_BTD, len(x_BTD))
        scores_BHTS = q_BHTK @ k_BHSK.mT * k_BHSK.shape[-1] ** -0.5
        if context.memory_mask_BS is not None:
            padding_B11S = ~context.memory_mask_BS[:, None, None, :]
            scores_BHTS = scores_BHTS.masked_fill(padding_B11S, -torch.inf)
        dtype = torch.promote_types(scores_BHTS.dtype, torch.float32)
        return scores_BHTS.softmax(-1, dtype=dtype)

    def _split(self, x_BTD: Tensor, rows: int) -> Tensor:
        head_width = x_BTD.shape[-1] // self.heads
        return x_BTD.view(rows, -1, self.heads, head_width).transpose(1, 2)


class Cache:
    """Keys and values that a decoder's attentions have read, for decoding a position at a time.

    Self-attention's have a row for each hypothesis and grow. Cross-attention's have a row for each
    sentence, are read once, and serve all its hypotheses, which stand together, equally many each.
    """

    def __init__(self) -> None:
        self._read: dict[Attention, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        """Positions read so far."""
        return next((k.shape[2] for f, (k, _) in self._read.items() if not f.cross), 0)

    def read(self, f: Attention, source_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all that `f` sees; for self-attention the source is what is new."""
        before = self._read.get(f)
        if before is None or not f.cross:
            # Without a mask a position would see those that are read with it and come later.
            assert f.cross or source_BSD.shape[1] == 1, "a cache takes one position at a time"
            new = f.read(source_BSD)
            if before is not None:
                new = torch.cat((before[0], new[0]), dim=2), torch.cat((before[1], new[1]), dim=2)
            self._read[f] = new
        return self._read[f]

    def select(self, hypotheses: Tensor, sentences: Tensor) -> None:
        """Goes on with these rows, in this order."""
        for f, (k, v) in self._read.items():
            rows = sentences if f.cross else hypotheses
            self._read[f] = k.index_select(0, rows), v.index_select(0, rows)


class FeedForward(nn.Module):
    """Two matrices with a ReLU between them."""

    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)
        self.inner_width = ffn

    def forward(self, x_BTD: Tensor, context: Context, inner: Callable[[Tensor], Tensor]) -> Tensor:
        return self.down(inner(F.relu(self.up(x_BTD))))


class Residual(nn.Module):
    """y = N_sum(skip x + branch v + bypass x0) with the numbers of `wiring`, where
    v = N_output(output_scale F(input_scale N_input(x))).

    F's activations before its last projection become inner_scale N_inner(h). `shared` holds the
    coefficients that a layer's sublayers have in common.
    """

    def __init__(
        self,
        f: Attention | FeedForward,
        wiring: Wiring,
        norm: MakeNorm,
        width: int,
        dropout: float,
        shared: dict[str, nn.Parameter],
    ) -> None:
        super().__init__()
        self.f, self.wiring = f, wiring
        self.norms = nn.ModuleDict(
            {
                site: norm(f.inner_width if site == "inner" else width)
                for site in sorted(wiring.norms)
            }
        )
        self.dropout = nn.Dropout(dropout)
        for name in get_args(Coefficient):
            channels = f.inner_width if name == "inner_scale" else width
            sizes = {"channel": channels, "head": getattr(f, "heads", 0)}
            setattr(self, name, _coefficient(name, getattr(wiring, name), sizes, shared))

    def forward(self, x_BTD: Tensor, x0_BTD: Tensor, context: Context) -> Tensor:
        v_BTD = self.dropout(self.value(x_BTD, context))
        y_BTD = _times(self.skip, x_BTD) + _times(self.branch, v_BTD)
        if self.wiring.bypass:
            y_BTD = y_BTD + _times(self.wiring.bypass, x0_BTD)
        return self._norm("sum", y_BTD)

    def value(self, x_BTD: Tensor, context: Context) -> Tensor:
        """v of the equation, before dropout."""
        v_BTD = _times(self.wiring.input_scale, self._norm("input", x_BTD))
        v_BTD = _by_heads(self.output_scale, self.f(v_BTD, context, self.inner))
        return self._norm("output", v_BTD)

    def inner(self, h: Tensor) -> Tensor:
        """F's activations before its last projection, normalised and scaled."""
        return _by_heads(self.inner_scale, self._norm("inner", h))

    def factors(self) -> Iterator[tuple[nn.Parameter, Factors]]:
        """What each parameter's rate and epsilon are multiplied by."""
        wiring = self.wiring
        for name, parameter in self.named_parameters():
            owner = self.get_submodule(name.rpartition(".")[0])
            if owner is self:  # a learned coefficient
                lr = 1.0
            else:
                lr = wiring.lr if isinstance(owner, nn.Linear) else wiring.norm_lr
            yield parameter, Factors(lr, wiring.eps)

    def _norm(self, site: str, x: Tensor) -> Tensor:
        return self.norms[site](x) if site in self.norms else x


def _coefficient(
    name: str, value: float | Learned, sizes: dict[str, int], shared: dict[str, nn.Parameter]
) -> float | nn.Parameter:
    if not isinstance(value, Learned):
        return value
    if value.per == "layer" and name in shared:
        return shared[name]
    shape = (sizes[value.per],) if value.per in sizes else ()
    parameter = nn.Parameter(torch.full(shape, value.init))
    if value.per == "layer":
        shared[name] = parameter
    return parameter


def _by_heads(factor: float | Tensor, x: Tensor) -> Tensor:
    """A factor for all channels, for each, or for each head, whose channels stand together."""
    if isinstance(factor, Tensor) and factor.ndim:
        factor = factor.repeat_interleave(x.shape[-1] // len(factor))
    return _times(factor, x)


def _times(factor: float | Tensor, x: Tensor) -> Tensor:
    return x if isinstance(factor, float) and factor == 1.0 else factor * x
