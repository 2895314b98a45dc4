"""Gradients of a run, block by block. Norms stay tensors until one transfer a step.

Series count steps from 0.
"""

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.data.batches import Batch
from harness.model.layers import Residual
from harness.model.transformer import Transformer
from harness.training.curves import Curves
from harness.training.module import LanguageModule
from harness.training.outcome import Detector
from harness.training.probes.outputs import Log
from harness.training.probes.states import tokens

MATRICES = ("v", "o", "up", "down")  # the branch matrices: what a depth-aware gain scales


class GradientProbe(L.Callback):
    """L2 norms of each block's gradient in float64, before clipping, told to the detector.

    Series: loss/train, loss/excess (over the better predictor without input), lr, grad_norm/all,
    and for each stack grad_norm/STACK (all parameters of a block) and grad_norm_matrices/STACK (v,
    o, up, down), one number a block.
    """

    def __init__(self, detector: Detector, curves: Curves, log: Log) -> None:
        self.detector, self.curves, self.tell = detector, curves, log

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.watch(pl_module.model, pl_module.device)

    def watch(self, model: Transformer, device: torch.device) -> None:
        """Notes which block each parameter belongs to."""
        blocks = [block for stack in model.stacks.values() for block in stack.blocks]
        self.sizes = {name: len(stack.blocks) for name, stack in model.stacks.items()}
        owner = {id(p): i for i, block in enumerate(blocks) for p in block.parameters()}
        matrices = {id(p) for block in blocks for p in branch_matrices(block)}
        self.parameters = list(model.parameters())
        # Index 0 gathers what is in no block: embeddings, final norms, the output projection.
        self.owner = torch.tensor(
            [owner.get(id(p), -1) + 1 for p in self.parameters], device=device
        )
        self.is_matrix = torch.tensor([id(p) in matrices for p in self.parameters], device=device)
        self.rows = len(blocks) + 1

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        assert isinstance(pl_module, LanguageModule)
        step, (loss, excess, width) = trainer.global_step, pl_module.take_step_loss()
        norms, norms_matrices = self.norms()
        total = float(torch.tensor(norms, dtype=torch.float64).square().sum().sqrt())
        rate = optimizer.param_groups[0]["lr"]
        scalars = {"loss/train": loss, "lr": rate, "grad_norm/all": total}
        start = 1
        for stack, size in self.sizes.items():
            own = slice(start, start + size)
            self.curves.add(f"grad_norm/{stack}", step, norms[own])
            self.curves.add(f"grad_norm_matrices/{stack}", step, norms_matrices[own])
            scalars[f"grad_norm/first_{stack}"] = norms[start]
            scalars[f"grad_norm/last_{stack}"] = norms[start + size - 1]
            start += size
        for series in ("loss/train", "lr", "grad_norm/all"):
            self.curves.add(series, step, scalars[series])
        self.curves.add("loss/excess", step, excess)
        self.tell(step, scalars)
        if self.detector.observe(step, excess, total, width):
            trainer.should_stop = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, _: Any, batch: Batch, index: int
    ) -> None:
        """What the last step has made of the last batch: no training loss is left to tell it."""
        assert isinstance(pl_module, LanguageModule)
        if trainer.global_step == trainer.max_steps and not trainer.should_stop:
            _, excess, width = pl_module.loss_after(batch)
            trainer.should_stop = bool(self.detector.close(excess, width))

    def norms(self) -> tuple[list[float], list[float]]:
        """Norms by row, of all parameters and of branch matrices, in one transfer."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        squares = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float64)).square()
        both = torch.zeros(2, self.rows, dtype=torch.float64, device=squares.device)
        both[0].index_add_(0, self.owner, squares)
        both[1].index_add_(0, self.owner, torch.where(self.is_matrix, squares, 0.0))
        rows = both.sqrt().tolist()
        return rows[0], rows[1]


class StreamProbe(L.Callback):
    """At step 0, by stack: norm of dL/d(first block's input) over dL/d(last block's output).

    The last block's output stands before any final norm; under accumulation it is that of the
    step's first batch. What stands before and after a final norm differs by the norm's Jacobian.
    """

    def __init__(self) -> None:
        self.ratios: dict[str, float] = {}
        self._norms: dict[tuple[str, str], Tensor] = {}
        self._handles: list[Any] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name, stack in pl_module.model.stacks.items():
            first, last = stack.blocks[0], stack.blocks[-1]
            self._handles += [
                first.register_forward_pre_hook(
                    lambda _, args, n=name: self._watch(n, "input", args[0])
                ),
                last.register_forward_hook(
                    lambda _, __, out, n=name: self._watch(n, "output", out)
                ),
            ]

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for name in pl_module.model.stacks:
            # An encoder that no decoder reads has no gradient at all.
            into, out = (float(self._norms.get((name, side), 0.0)) for side in ("input", "output"))
            if out > 0:
                self.ratios[name] = into / out

    def _watch(self, stack: str, side: str, x: Tensor) -> None:
        def keep(gradient: Tensor) -> None:
            self._norms[stack, side] = torch.linalg.vector_norm(gradient, dtype=torch.float64)

        if x.requires_grad:  # not the passes of other probes
            x.register_hook(keep)


class InitProbe(L.Callback):
    """What a model shows as it is drawn, beside the gradients of every run; all at step 0.

    `down`: by stack, the gradient norm of the last layer's second feed-forward matrix
    (arXiv:2002.04745 Theorem 1). `cross`: mean square over tokens of what cross-attention adds,
    divided by that of what it is added to, mean over layers: s^2 in (1 + s^2)^(-1/2). None in a
    model without cross-attention.
    """

    def __init__(self) -> None:
        self.down: dict[str, float] = {}
        self.cross: float | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._shares: list[Tensor] = []
        self._handles = [
            block["cross"].register_forward_hook(self._watch)
            for stack in pl_module.model.stacks.values()
            for block in stack.blocks
            if "cross" in block
        ]

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for handle in self._handles:
            handle.remove()
        if self._shares:
            self.cross = float(torch.stack(self._shares).mean())

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:  # where 16-mixed has taken its scale off the gradients
        for name, stack in pl_module.model.stacks.items():
            gradient = stack.blocks[-1]["ffn"].f.down.weight.grad
            norm = 0.0 if gradient is None else gradient.double().norm()
            self.down[name] = float(norm)

    @torch.no_grad()
    def _watch(self, residual: Residual, args: tuple[Any, ...], _: Tensor) -> None:
        x_BTD, _, context = args
        added_BTD = residual.branch * residual.value(x_BTD, context).double()
        kept_BTD = residual.skip * x_BTD.double()
        added, kept = (tokens(x, context.mask_BT).square().mean() for x in (added_BTD, kept_BTD))
        self._shares.append(added / kept)


def branch_matrices(block: nn.ModuleDict) -> list[nn.Parameter]:
    """The v, o, up and down matrices of a block's sublayers."""
    return [
        getattr(residual.f, role).weight
        for residual in block.values()
        if isinstance(residual, Residual)
        for role in MATRICES
        if hasattr(residual.f, role)
    ]
