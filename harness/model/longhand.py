"""The slow twin of Residual: equation, attention and feed-forward written out, layer norms only.

Letters: B batch, T target length, S source length, D width, H heads, K head width.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from harness.model.layers import Attention, Context, Residual
from harness.schemes import Learned


def longhand(residual: Residual, x: Tensor, x0: Tensor, context: Context) -> Tensor:
    """N_sum(skip x + branch v + bypass x0), v = N_output(output_scale F(input_scale N_input(x)))"""
    w, f = residual.wiring, residual.f

    def norm(site: str, at: Tensor) -> Tensor:
        if site not in w.norms:
            return at
        module = residual.norms[site]
        centred = at - at.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + module.eps).rsqrt()
        return centred * scale * module.weight + module.bias

    def number(name: str, channels: int) -> Any:
        given = getattr(w, name)
        if not isinstance(given, Learned):
            return given
        value = getattr(residual, name)  # one for all channels, for each, or for each head
        return value.repeat_interleave(channels // len(value)) if value.ndim else value

    v = norm("input", x) * w.input_scale
    h = _heads(f, v, context) if isinstance(f, Attention) else torch.relu(_linear(f.up, v))
    h = norm("inner", h) * number("inner_scale", h.shape[-1])
    v = _linear(f.o if isinstance(f, Attention) else f.down, h)
    v = norm("output", v * number("output_scale", v.shape[-1]))
    y = number("skip", x.shape[-1]) * x + number("branch", x.shape[-1]) * v
    return norm("sum", y + w.bypass * x0)


def _heads(f: Attention, x_BTD: Tensor, context: Context) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V, a head after the other, before the output projection."""
    source_BSD, mask_BS = (
        (context.memory_BSD, context.memory_mask_BS) if f.cross else (x_BTD, context.mask_BT)
    )
    q, k, v = _linear(f.q, x_BTD), _linear(f.k, source_BSD), _linear(f.v, source_BSD)
    width = q.shape[-1] // f.heads
    found = []
    for head in range(f.heads):
        mine = slice(head * width, (head + 1) * width)
        scores_BTS = q[..., mine] @ k[..., mine].mT / math.sqrt(width)
        if f.causal:
            later = torch.ones(scores_BTS.shape[-2:], dtype=torch.bool).triu(1)
            scores_BTS = scores_BTS.masked_fill(later, -math.inf)
        elif mask_BS is not None:
            scores_BTS = scores_BTS.masked_fill(~mask_BS[:, None, :], -math.inf)
        found.append(torch.softmax(scores_BTS, -1) @ v[..., mine])
    return torch.cat(found, -1)


def _linear(map_: nn.Linear, x: Tensor) -> Tensor:
    return torch.einsum("...i,oi->...o", x, map_.weight) + map_.bias
