"""Learned coefficients of a model's residuals over the steps, block by block."""

import math
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from harness.model.transformer import Transformer
from harness.training.curves import BLOCKS, Curves
from harness.training.probes.outputs import Log


class Coefficient(NamedTuple):
    """A coefficient of a stack, by zero-based block: the parameter, and where its values begin."""

    stack: str
    name: str
    parts: dict[int, tuple[Tensor, int]]


class CoefficientProbe(L.Callback):
    """Records each learned coefficient as every step uses it, and as the last one leaves it.

    Series coefficient/STACK/SUBLAYER.NAME, NAME as in Wiring; SUBLAYER is `layer` for a coefficient
    that the sublayers of a layer share. One number per block: the coefficient, or its mean over
    channels or heads; NaN for a block without it.

    In a stack of dense connections (DLCL):
    coefficient/STACK/dense: for each block, the weight of its output in the combination after it.
    coefficient/STACK/dense.L, at step 0 and at the end: the weights that the input of layer L gives
    to the embedding (block 1) and to the outputs of layers 1 to L - 1. Layer depth + 1 stands for
    what follows the last layer. At most 16 layers, evenly spaced, first and last included.

    The tracker receives the value in the first and in the last block that has the coefficient.
    """

    def __init__(self, curves: Curves, log: Log) -> None:
        self.curves, self.tell = curves, log

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.watch(pl_module.model, pl_module.device)
        self._add_dense(0)

    def watch(self, model: Transformer, device: torch.device) -> None:
        """Finds the coefficients, and which numbers belong to which block of each."""
        self.sizes = {name: len(stack.blocks) for name, stack in model.stacks.items()}
        self.dense = {name: s.dense.weights for name, s in model.stacks.items() if s.dense}
        self.coefficients = _coefficients(model)
        self.parts = [part for each in self.coefficients for part in each.parts.values()]
        sizes = torch.tensor([p.numel() - start for p, start in self.parts], dtype=torch.long)
        self.owner = torch.arange(len(sizes)).repeat_interleave(sizes).to(device)
        self.counts = sizes.double().to(device)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        self._add(trainer.global_step)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._add(trainer.global_step)
        self._add_dense(trainer.global_step)

    def values(self) -> list[float]:
        """Mean of each part, in one transfer."""
        flat = torch.cat([p.detach().flatten()[start:] for p, start in self.parts]).double()
        sums = torch.zeros_like(self.counts).index_add_(0, self.owner, flat)
        return (sums / self.counts).tolist()

    def _add(self, step: int) -> None:
        if not self.parts:
            return
        values = iter(self.values())
        scalars: dict[str, dict[str, float]] = {}
        for stack, name, parts in self.coefficients:
            row = [math.nan] * self.sizes[stack]
            for block in parts:
                row[block] = next(values)
            self.curves.add(f"coefficient/{stack}/{name}", step, row)
            ends = {"first": row[min(parts)], "last": row[max(parts)]}
            scalars.setdefault(stack, {}).update(
                {f"coefficient/{end}_{stack}/{name}": value for end, value in ends.items()}
            )
        for of_stack in scalars.values():
            self.tell(step, of_stack)

    def _add_dense(self, step: int) -> None:
        for stack, weights in self.dense.items():
            for i in np.unique(np.linspace(0, len(weights) - 1, BLOCKS).round().astype(int)):
                series = f"coefficient/{stack}/dense.{i + 1}"
                self.curves.add(series, step, weights[i].detach().tolist())


def _coefficients(model: Transformer) -> list[Coefficient]:
    found: dict[tuple[str, str], dict[int, tuple[Tensor, int]]] = {}
    for name, stack in model.stacks.items():
        for i, block in enumerate(stack.blocks):
            for kind, residual in block.items():
                for coefficient, learned in residual.wiring.learned.items():
                    owner = "layer" if learned.per == "layer" else kind
                    part = getattr(residual, coefficient), 0
                    found.setdefault((name, f"{owner}.{coefficient}"), {})[i] = part
            if stack.dense:
                weights = stack.dense.weights[i + 1]
                found.setdefault((name, "dense"), {})[i] = weights, len(weights) - 1
    return [Coefficient(*key, parts) for key, parts in found.items()]
