"""Initial weights: each tensor is z times a deviation, z drawn by a generator of its own.

The generator's seed is SHA-256 of (seed, parameter name), so that layer 3 starts from the same z at
every depth and, up to its gain, in every scheme.
"""

import hashlib
import math

import torch
from torch import Tensor

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
                fans = linear.in_features + linear.out_features
                std = getattr(module.wiring.gain, role) * math.sqrt(2 / fans)
                _draw(linear.weight, f"{name}.f.{role}.weight", seed, std)
                linear.bias.zero_()
        elif isinstance(module, Stack):
            _draw(module.embedding.weight, f"{name}.embedding.weight", seed, module.width**-0.5)
    _draw(model.output.weight, "output.weight", seed, model.output.in_features**-0.5)
    return model


def _draw(weight: Tensor, name: str, seed: int, std: float) -> None:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    weight.copy_(std * torch.randn(weight.shape, generator=generator))
