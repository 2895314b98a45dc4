"""Hidden states of a model on one validation batch: their movement, scale and diversity.

Padding is left out of every number. Letters: B sequences, T positions, S source positions, D width,
H heads, N tokens.
"""

from contextlib import ExitStack
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from harness.data.batches import Batch
from harness.model.layers import Attention
from harness.training.curves import Curves
from harness.training.probes.outputs import Log, due

EARLY = (20, 40, 60, 80, 100)  # steps at which shares are measured beside those of validation


class StateProbe(L.Callback):
    """Measures hidden states in evaluation mode on one validation batch, of tokens only.

    update_norm: norm of F(theta_k) - F(theta_0) over norm of F(theta_0), F the output of the last
    stack after its final norm (arXiv:2203.00555 section 3), k = `steps`.
    Series activation_rms/STACK: root mean square of each block's output, at step 0, at step k and
    at the end.
    Series token_share/STACK (see `token_share`) and, in a model with cross-attention,
    attention_entropy/decoder (see `entropy`), one number per layer: at step 0, at the steps EARLY,
    at each validation and at the end.
    """

    def __init__(self, batch: Batch, steps: int, every: int, curves: Curves, log: Log) -> None:
        self.batch, self.steps, self.every = batch, steps, every
        self.curves, self.tell = curves, log
        self.update_norm: float | None = None
        self._step = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start_ND = self._measure(trainer, pl_module, scales=True, shares=True)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        step = trainer.global_step
        if step == self._step:
            return  # the batch was accumulated
        self._step = step
        moved = step == self.steps
        last = step == trainer.max_steps or trainer.should_stop  # measured when training has ended
        shares = not last and (step in EARLY or due(trainer, self.every))
        if not (moved or shares):
            return
        states_ND = self._measure(trainer, pl_module, scales=moved, shares=shares)
        if moved:
            self.update_norm = float((states_ND - self.start_ND).norm() / self.start_ND.norm())
            self.tell(step, {"update_norm": self.update_norm})

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        scales = trainer.global_step > self.steps
        self._measure(trainer, pl_module, scales=scales, shares=True)

    @torch.no_grad()
    def _measure(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *, scales: bool, shares: bool
    ) -> Tensor:
        """Adds the series that are due, from one forward pass; returns the last stack's output."""
        model, step = pl_module.model, trainer.global_step
        outputs: list[tuple[Tensor, Tensor | None]] = []  # of each stack, with its mask
        found: dict[str, list[Tensor]] = {}  # by series, a number per layer
        training = model.training
        model.eval()
        with ExitStack() as hooks, trainer.precision_plugin.forward_context():
            for name, stack in model.stacks.items():
                handle = stack.register_forward_hook(
                    lambda _, args, out: outputs.append((out, args[1].mask_BT))
                )
                hooks.callback(handle.remove)
                for block in stack.blocks:
                    if scales:
                        of = found.setdefault(f"activation_rms/{name}", [])
                        hooks.callback(_watch_scale(block, of).remove)
                    if shares and "cross" in block:
                        of = found.setdefault(f"attention_entropy/{name}", [])
                        hooks.callback(_watch_entropy(block["cross"].f, of).remove)
            model.features(*self.batch.to(pl_module.device).model_inputs)
        model.train(training)
        for series, values in found.items():
            self.curves.add(series, step, torch.stack(values).tolist())
        for name, (states_BTD, mask_BT) in zip(model.stacks, outputs, strict=True):
            share = token_share(states_BTD, mask_BT) if shares else None
            if share is not None:
                self.curves.add(f"token_share/{name}", step, share)
        return tokens(*outputs[-1]).double()


def _watch_scale(block: nn.Module, found: list[Tensor]) -> RemovableHandle:
    """Appends the root mean square of the block's output."""

    def hook(_: nn.Module, args: tuple[Any, ...], out_BTD: Tensor) -> None:
        square = tokens(out_BTD, args[1].mask_BT).double().square().mean()
        found.append(square.sqrt())

    return block.register_forward_hook(hook)


def _watch_entropy(attention: Attention, found: list[Tensor]) -> RemovableHandle:
    """Appends the entropy of the attention's weights, which `forward` does not return."""

    def hook(_: nn.Module, args: tuple[Any, ...], out_BTD: Tensor) -> None:
        x_BTD, context, _inner = args
        found.append(entropy(attention.weights(x_BTD, context), context.mask_BT))

    return attention.register_forward_hook(hook)


def tokens(x: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Keeps the tokens of x, of shape B x T x ..., in one dimension: N x ..."""
    return x.flatten(0, 1) if mask_BT is None else x[mask_BT]


def token_share(states_BTD: Tensor, mask_BT: Tensor | None) -> float | None:
    """Share of the states' mean square that differs between tokens at one position:

        sum |h_bt - m_t|^2 / sum |h_bt|^2

    over tokens, m_t the mean over the sequences with a token at position t. Only positions with at
    least two tokens count; None without such a position.
    """
    kept_BT = torch.ones_like(states_BTD[..., 0], dtype=torch.bool) if mask_BT is None else mask_BT
    count_T = kept_BT.sum(0)
    kept_BT1 = (kept_BT & (count_T >= 2))[..., None]
    if not kept_BT1.any():
        return None
    h_BTD = states_BTD.double().masked_fill(~kept_BT1, 0.0)
    mean_TD = h_BTD.sum(0) / count_T.clamp(min=1)[:, None]
    apart_BTD = (h_BTD - mean_TD).masked_fill(~kept_BT1, 0.0)
    return float(apart_BTD.square().sum() / h_BTD.square().sum())


def entropy(weights_BHTS: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Entropy of attention over its source, in nats: mean over tokens, heads and sequences."""
    entropy_BHT = torch.special.entr(weights_BHTS).sum(-1, dtype=torch.float64)
    return tokens(entropy_BHT.transpose(1, 2), mask_BT).mean()
