"""Optimizers and learning-rate schedules, stepped once an optimizer step."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from harness.model.layers import Factors
from harness.training.config import Optim


def optimizer(
    parameters: Iterable[nn.Parameter],
    options: Optim,
    *,
    fused: bool,
    factors: Mapping[nn.Parameter, Factors] | None = None,
) -> Optimizer:
    """Only matrices decay: norms, biases and learned coefficients have fewer than two axes.

    `factors` multiply rate and epsilon of the parameters they name. The first group is that of
    matrices without such factors: the embeddings and the output projection at least.
    """
    base = Factors()
    grouped: dict[tuple[bool, Factors], list[nn.Parameter]] = {(True, base): [], (False, base): []}
    for parameter in parameters:
        own = base if factors is None else factors.get(parameter, base)
        grouped.setdefault((parameter.ndim >= 2, own), []).append(parameter)
    groups: list[dict[str, Any]] = []
    for (decays, own), members in grouped.items():
        if not members and groups:
            continue
        decay = options.weight_decay if decays else 0.0
        groups.append({"params": members, "lr": own.lr * options.lr, "weight_decay": decay})
        if options.name != "sgd":
            groups[-1]["eps"] = own.eps * options.eps
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
