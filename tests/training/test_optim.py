"""The rate of each step against its closed form, what decays, and what clipping bounds."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.data import tasks
from harness.training.config import Config, Optim
from harness.training.optim import optimizer, rate_factor
from harness.training.train import build, train

HERE = Path()
VOCABULARIES = (13, 13)


def closed_form(schedule: str, warmup: int, step: int) -> float:
    """Factor on the rate at a one-based step: arXiv:1706.03762 equation 3, scaled to peak at 1."""
    if schedule == "constant":
        return min(1.0, step / warmup) if warmup else 1.0
    if not warmup:
        return 1 / math.sqrt(step)
    return min(step / warmup, math.sqrt(warmup / step))


SCHEDULES = list(itertools.product(("constant", "inverse_sqrt"), (0, 1, 4)))


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize(("schedule", "warmup"), SCHEDULES)
def test_the_rate_used_at_each_step_is_the_closed_form(
    schedule: str, warmup: int, accumulation: int, config: Callable[..., Config]
) -> None:
    changes = {"optim.schedule": schedule, "optim.warmup_steps": warmup, "optim.lr": 0.002}
    curves = train(config(changes | {"train.accumulation": accumulation}), HERE).curves
    assert curves.steps["lr"] == list(range(10))
    expected = [0.002 * closed_form(schedule, warmup, step) for step in range(1, 11)]
    assert curves.values["lr"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("schedule", "warmup"), SCHEDULES)
def test_the_factor_reaches_one_and_never_passes_it(schedule: str, warmup: int) -> None:
    options = Optim(lr=1.0, schedule=schedule, warmup_steps=warmup)
    factors = [rate_factor(options, step) for step in range(50)]
    assert max(factors) == factors[max(warmup - 1, 0)] == 1.0
    assert min(factors) > 0


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("warmup", [0, 4])
def test_one_sgd_step_moves_weights_by_rate_times_clipped_gradient(
    clip: float, warmup: int, config: Callable[..., Config], models: list[Any]
) -> None:
    changes = {"optim.name": "sgd", "optim.lr": 0.5, "optim.clip": clip, "train.steps": 1}
    c = config(changes | {"optim.warmup_steps": warmup})
    _, curves = train(c, HERE)
    start = build(c, VOCABULARIES)
    moved = torch.cat(
        [
            (after.detach().double() - before.detach().double()).flatten()
            for after, before in zip(models[0].parameters(), start.parameters(), strict=True)
        ]
    )
    norm = curves.values["grad_norm/all"][0]
    assert norm > 0.1  # before clipping
    rate = 0.5 / warmup if warmup else 0.5
    assert float(moved.norm()) == pytest.approx(rate * min(norm, clip or norm), rel=2e-4)


def test_clipping_leaves_the_measured_norms_as_they_are(config: Callable[..., Config]) -> None:
    changes = {"optim.name": "sgd", "optim.lr": 1e-9}  # weights stay where they are
    free = train(config(changes), HERE).curves
    clipped = train(config(changes | {"optim.clip": 1e-3}), HERE).curves
    for series in ("grad_norm/all", "grad_norm/decoder", "grad_norm_matrices/decoder"):
        norms = clipped.array(series)
        assert norms == pytest.approx(free.array(series), rel=1e-5)
        assert norms.max() > 10 * 1e-3


def test_clipping_changes_an_sgd_run(config: Callable[..., Config]) -> None:
    changes = {"optim.name": "sgd", "optim.lr": 0.5}
    free = train(config(changes), HERE).curves.values["loss/train"]
    clipped = train(config(changes | {"optim.clip": 0.1}), HERE).curves.values["loss/train"]
    assert clipped[0] == free[0]
    assert clipped[1] != free[1]


# Weight decay


def free_of_decay(name: str) -> bool:
    """Norms, biases and learned coefficients, by their names."""
    return ".norms." in name or ".norm." in name or name.endswith((".bias", ".skip", ".branch"))


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("scheme", ["post_norm", "pre_norm", "rezero", "b2t", "deepnorm"])
def test_only_matrices_decay(kind: str, scheme: str, config: Callable[..., Config]) -> None:
    changes = {"scheme": scheme, "optim.name": kind, "optim.weight_decay": 0.5, "optim.lr": 0.1}
    c = config(changes | {"model.family": "encoder_decoder"})
    model = build(c, VOCABULARIES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25)  # biases and gates start at nothing, which cannot decay
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer(model.parameters(), c.optim, fused=True).step()
    still = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
    assert still == {name for name in before if free_of_decay(name)}
    gates = {name for name in still if name.endswith(".branch")}
    assert bool(gates) == (scheme == "rezero")


def test_every_parameter_is_optimized_once(config: Callable[..., Config]) -> None:
    c = config({"scheme": "rezero"})
    model = build(c, VOCABULARIES)
    groups = optimizer(model.parameters(), c.optim, fused=True).param_groups
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


def test_adam_folds_decay_into_the_gradient_and_adamw_does_not() -> None:
    # One step from w = 1 without gradient: Adam normalises the decay away, AdamW subtracts lr wd w.
    ends = {}
    for kind in ("adam", "adamw", "sgd"):
        weight = torch.nn.Parameter(torch.ones(1, 1))
        weight.grad = torch.zeros(1, 1)
        options = Optim(name=kind, lr=0.1, weight_decay=0.5)
        optimizer([weight], options, fused=True).step()
        ends[kind] = float(weight.detach())
    assert ends == pytest.approx({"adam": 0.9, "adamw": 0.95, "sgd": 0.95}, rel=1e-6)


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_training_follows_the_update_rule_written_out(
    kind: str, config: Callable[..., Config], models: list[Any]
) -> None:
    """Three steps by hand: Adam of arXiv:1412.6980 algorithm 1, with epsilon outside the root."""
    lr, b1, b2, eps, decay = 0.01, 0.8, 0.95, 1e-3, 0.1
    changes = {"optim.name": kind, "optim.lr": lr, "optim.betas": [b1, b2], "optim.eps": eps}
    c = config(changes | {"optim.weight_decay": decay, "train.steps": 3})
    train(c, HERE)
    task = tasks.load(c.data, HERE, "decoder", c.train.length)
    model = build(c, task.vocabularies)
    moments = {
        name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in model.named_parameters()
    }
    for t in range(1, 4):
        arrays = task.train(c.seed, t - 1, c.train.batch)
        logits = model(torch.from_numpy(arrays.inputs_BT))  # causal: padding at the end is unseen
        kept = torch.from_numpy(arrays.targets_BT >= 0)
        loss = (
            -logits.log_softmax(-1)[kept]
            .gather(1, torch.from_numpy(arrays.targets_BT)[kept][:, None])
            .mean()
        )
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                g, wd = p.grad, 0.0 if free_of_decay(name) else decay
                if kind == "adamw":
                    p -= lr * wd * p
                else:
                    g = g + wd * p
                if kind == "sgd":
                    p -= lr * g
                    continue
                m, v = moments[name]
                m.mul_(b1).add_((1 - b1) * g)
                v.mul_(b2).add_((1 - b2) * g * g)
                p -= lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
    for (name, p), q in zip(models[0].named_parameters(), model.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-4, atol=1e-6), name
