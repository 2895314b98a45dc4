"""Optimizers and learning-rate schedules, stepped once an optimizer step."""

from collections.abc import Iterable

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from harness.training.config import Optim


def optimizer(parameters: Iterable[nn.Parameter], options: Optim, *, fused: bool) -> Optimizer:
    """Only matrices decay: norms, biases and learned coefficients have fewer than two axes."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for parameter in parameters:
        (decayed if parameter.ndim >= 2 else free).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": options.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    if options.name == "sgd":
        return SGD(groups, lr=options.lr, fused=fused)
    kind = Adam if options.name == "adam" else AdamW
    return kind(groups, lr=options.lr, betas=options.betas, eps=options.eps, fused=fused)


def rate_factor(options: Optim, step: int) -> float:
    """The factor on the rate at a 0-based step: linear warm-up, which reaches 1 at its last step,
    then constant or the inverse square root of arXiv:1706.03762 equation 3."""
    warmup = options.warmup_steps
    if step + 1 < warmup:
        return (step + 1) / warmup
    return 1.0 if options.schedule == "constant" else (max(warmup, 1) / (step + 1)) ** 0.5
