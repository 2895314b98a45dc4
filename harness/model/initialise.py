"""Initial weights: each tensor is z times a deviation, z drawn by a generator of its own; and the
coefficients that one batch decides.

The generator's seed is SHA-256 of (seed, parameter name), so that layer 3 starts from the same z at
every depth and, up to its gain, in every scheme.
"""

import hashlib
import math

import torch
from torch import Tensor, nn

from harness.model.layers import Residual
from harness.model.transformer import Stack, Transformer


@torch.no_grad()
def initialise(model: Transformer, seed: int) -> Transformer:
    """Draws every matrix; norms and learned coefficients keep their start, biases are zero.

    Branch matrices are Xavier-normal times the wiring's gain, gain sqrt(2 / (fan_in + fan_out))
    (arXiv:2203.00555 Figure 2a); embeddings and output projection are N(0, 1/width).
    """
    for name, module in model.named_modules():
        if isinstance(module, Residual):
            for role, linear in module.f.named_children():
                if not isinstance(linear, nn.Linear):
                    continue  # a norm of queries or keys
                fans = linear.in_features + linear.out_features
                std = getattr(module.wiring.gain, role) * math.sqrt(2 / fans)
                _draw(linear.weight, f"{name}.f.{role}.weight", seed, std)
                linear.bias.zero_()
        elif isinstance(module, Stack):
            std = module.facts.embedding_gain * module.width**-0.5
            _draw(module.embedding.weight, f"{name}.embedding.weight", seed, std)
    _draw(model.output.weight, "output.weight", seed, model.output.in_features**-0.5)
    return model


@torch.no_grad()
def calibrate(model: Transformer, *inputs: Tensor | None) -> Transformer:
    """Sets each profiled skip to the deviation of its stack's sum before it (arXiv:2004.08249, as
    released): 1 at first, then (Var(skip x) + Var(v))^(1/2) of the sublayer before, v its branch.

    One forward pass does it all: a skip is set when its sublayer is reached.
    """
    if not any(c.profiled for r in model.residuals for c in r.wiring.learned.values()):
        return model
    handles = []
    for stack in model.stacks.values():
        sums = [1.0]  # the deviation of the latest sum
        for residual in (r for block in stack.blocks for r in block.values()):

            def enter(residual: Residual, args: tuple, sums: list = sums) -> None:
                residual.skip.fill_(sums[-1])
                sums[-1] = float((residual.skip * args[0]).var(correction=0))

            def leave(_: nn.Module, args: tuple, v_BTD: Tensor, sums: list = sums) -> None:
                sums[-1] = math.sqrt(sums[-1] + float(v_BTD.var(correction=0)))

            # What the dropout gives is the branch, as it is added.
            handles.append(residual.register_forward_pre_hook(enter))
            handles.append(residual.dropout.register_forward_hook(leave))
    model.features(*inputs)
    for handle in handles:
        handle.remove()
    return model


def _draw(weight: Tensor, name: str, seed: int, std: float) -> None:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    weight.copy_(std * torch.randn(weight.shape, generator=generator))
