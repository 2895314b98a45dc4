"""Measurements of a run as Lightning callbacks. Norms stay tensors until one transfer a step.

Series of training count steps from 0; those measured between steps (validation, activations, the
update) say how many steps had been taken. Letters: B sequences, T targets, D width.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.data.batches import Batch
from harness.model.layers import Residual
from harness.model.transformer import Transformer
from harness.training.curves import Curves
from harness.training.divergence import Detector
from harness.training.module import LanguageModule

IDLE_NATS = 0.01  # a block whose removal costs less does nothing that counts
MATRICES = ("v", "o", "up", "down")  # the branch matrices: what a depth-aware gain scales

Log = Callable[[int, dict[str, float]], None]  # (step, scalars): to the tracker


class GradientProbe(L.Callback):
    """L2 norms of each block's gradient in float64, before clipping, told to the detector.

    Series: loss/train, lr, grad_norm/all, and for each stack grad_norm/STACK (all parameters of a
    block) and grad_norm_matrices/STACK (v, o, up, down), one number a block.
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
        step, loss = trainer.global_step, pl_module.take_step_loss()
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
        self.tell(step, scalars)
        if self.detector.observe(step, loss, total):
            trainer.should_stop = True

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


class UpdateProbe(L.Callback):
    """How far the model moves in its first steps, and the scale of its activations.

    Both in evaluation mode on one validation batch. update_norm: norm of F(theta_k) - F(theta_0)
    over norm of F(theta_0), F the output of the last stack after its final norm (arXiv:2203.00555
    section 3). Series activation_rms/STACK: root mean square of each block's output, at step 0, at
    step k and at the end.
    """

    def __init__(self, batch: Batch, steps: int, curves: Curves, log: Log) -> None:
        self.batch, self.steps, self.curves, self.tell = batch, steps, curves, log
        self.update_norm: float | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start_BTD = self._features(trainer, pl_module, 0)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if trainer.global_step == self.steps and self.update_norm is None:
            moved_BTD = self._features(trainer, pl_module, self.steps) - self.start_BTD
            self.update_norm = float(moved_BTD.norm() / self.start_BTD.norm())
            self.tell(self.steps, {"update_norm": self.update_norm})

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step > self.steps:
            self._features(trainer, pl_module, trainer.global_step)

    @torch.no_grad()
    def _features(self, trainer: L.Trainer, pl_module: L.LightningModule, step: int) -> Tensor:
        model: nn.Module = pl_module.model
        scales: dict[str, list[Tensor]] = {name: [] for name in model.stacks}
        training = model.training
        model.eval()
        with ExitStack() as hooks, trainer.precision_plugin.forward_context():
            for name, stack in model.stacks.items():
                for block in stack.blocks:
                    handle = block.register_forward_hook(
                        lambda _, __, out, n=name: scales[n].append(
                            out.double().square().mean().sqrt()
                        )
                    )
                    hooks.callback(handle.remove)
            features_BTD = model.features(*self.batch.to(pl_module.device).model_inputs)
        model.train(training)
        for name, values in scales.items():
            self.curves.add(f"activation_rms/{name}", step, torch.stack(values).tolist())
        return features_BTD.double()


class ValidationProbe(L.Callback):
    """Validation loss every so many steps, and at the end of a run that has not diverged."""

    def __init__(self, batches: list[Batch], every: int, curves: Curves, log: Log) -> None:
        self.batches, self.every, self.curves, self.tell = batches, every, curves, log
        self.losses: list[float] = []
        self.final: dict[str, float] = {}
        self._step = 0

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        step = trainer.global_step
        due = step == trainer.max_steps or (self.every > 0 and step % self.every == 0)
        if step == self._step or not due or trainer.should_stop:
            return
        assert isinstance(pl_module, LanguageModule)
        self._step = step  # batches that only accumulate leave the step as it is
        self.final = pl_module.evaluate(self.batches)
        self.losses.append(self.final["loss"])
        self.curves.add("loss/valid", step, self.final["loss"])
        self.tell(step, {"loss/valid": self.final["loss"]})


class InitProbe(L.Callback):
    """What a model shows as it is drawn, beside the gradients of every run; all at step 0.

    `down`: by stack, the gradient norm of the last layer's second feed-forward matrix
    (arXiv:2002.04745 Theorem 1). `cross`: mean square of cross-attention's output over that of the
    stream that it is added to, mean over layers: s^2 in the factor (1 + s^2)^(-1/2) that a sum norm
    leaves of the stream. None where there is no cross-attention.
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
        for name, stack in pl_module.model.stacks.items():
            gradient = stack.blocks[-1]["ffn"].f.down.weight.grad
            norm = 0.0 if gradient is None else gradient.double().norm()
            self.down[name] = float(norm)

    @torch.no_grad()
    def _watch(self, residual: Residual, args: tuple[Any, ...], _: Tensor) -> None:
        x_BTD, _, context = args
        v_BTD = residual.f(x_BTD, context, residual.inner)
        self._shares.append(v_BTD.double().square().mean() / x_BTD.double().square().mean())


class SkipProbe(L.Callback):
    """Whether the depth is used: by how much the validation loss rises at the end of a run when a
    block is left out, for each block alone. `idle` is the share that costs under 0.01 nats.

    Series skip_cost/STACK, one number a block.
    """

    def __init__(self, validation: "ValidationProbe", curves: Curves) -> None:
        self.validation, self.curves = validation, curves
        self.idle: float | None = None

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        whole = self.validation.final.get("loss")
        if trainer.should_stop or whole is None:
            return
        assert isinstance(pl_module, LanguageModule)
        costs: list[float] = []
        for name, stack in pl_module.model.stacks.items():
            own = [self._loss_without(block, pl_module) - whole for block in stack.blocks]
            self.curves.add(f"skip_cost/{name}", trainer.global_step, own)
            costs += own
        self.idle = sum(cost < IDLE_NATS for cost in costs) / len(costs)

    def _loss_without(self, block: nn.Module, module: LanguageModule) -> float:
        handle = block.register_forward_hook(lambda _, args, out: args[0])
        loss = module.evaluate(self.validation.batches)["loss"]
        handle.remove()
        return loss


class Clock(L.Callback):
    """Seconds in training steps; stands first, so that what follows a step is not counted."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self._start


def branch_matrices(block: nn.ModuleDict) -> list[nn.Parameter]:
    """The v, o, up and down matrices of a block's sublayers."""
    return [
        getattr(residual.f, role).weight
        for residual in block.values()
        if isinstance(residual, Residual)
        for role in MATRICES
        if hasattr(residual.f, role)
    ]
