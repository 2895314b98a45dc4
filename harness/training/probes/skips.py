"""Blocks left out at the end of a run: what the depth is worth."""

import math
from collections.abc import Sequence
from contextlib import ExitStack

import lightning as L
from torch import nn

from harness.training.curves import Curves
from harness.training.module import LanguageModule
from harness.training.probes.outputs import ValidationProbe

IDLE_NATS = 0.01  # a block that costs less is idle


class SkipProbe(L.Callback):
    """Measures by how much the validation loss rises (nats per token) when blocks are left out, at
    the end of a run that has not diverged.

    `idle`: share of idle blocks, each of which costs under 0.01 nats when it alone is left out.
    `idle_cost`: rise without all idle blocks at once; 0 if none is idle.
    Series skip_cost/STACK: rise without each block alone, one number per block.
    Series skip_cost_cumulative: its value i is the rise without the i + 1 cheapest blocks of all
    stacks at once. Blocks of equal cost keep the order of the data's flow.
    """

    def __init__(self, validation: ValidationProbe, curves: Curves) -> None:
        self.validation, self.curves = validation, curves
        self.idle: float | None = None
        self.idle_cost: float | None = None

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        whole = self.validation.final.get("loss")
        if trainer.should_stop or whole is None:
            return
        assert isinstance(pl_module, LanguageModule)
        found: list[tuple[float, nn.Module]] = []
        for name, stack in pl_module.model.stacks.items():
            own = [self._loss_without([block], pl_module) - whole for block in stack.blocks]
            self.curves.add(f"skip_cost/{name}", trainer.global_step, own)
            found += zip(own, stack.blocks, strict=True)
        # A loss that is not finite is the highest.
        found.sort(key=lambda each: each[0] if math.isfinite(each[0]) else math.inf)
        blocks = [block for _, block in found]
        cumulative = [found[0][0]]
        cumulative += [
            self._loss_without(blocks[:count], pl_module) - whole
            for count in range(2, len(blocks) + 1)
        ]
        self.curves.add("skip_cost_cumulative", trainer.global_step, cumulative)
        idle = sum(cost < IDLE_NATS for cost, _ in found)
        self.idle = idle / len(found)
        self.idle_cost = cumulative[idle - 1] if idle else 0.0

    def _loss_without(self, blocks: Sequence[nn.Module], module: LanguageModule) -> float:
        with ExitStack() as hooks:
            for block in blocks:
                handle = block.register_forward_hook(lambda _, args, out: args[0])
                hooks.callback(handle.remove)
            return self.validation.measure(module)["loss"]
