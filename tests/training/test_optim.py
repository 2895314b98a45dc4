"""The rate of each step against its closed form, what decays, and what clipping bounds."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from harness.data import tasks
from harness.model.layers import Factors
from harness.schemes import all_schemes
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
    _, curves, _ = train(c, HERE)
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
    learned = (".bias", ".skip", ".branch", ".inner_scale", ".output_scale")
    return "norm" in name or ".dense." in name or name.endswith(learned)


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize(
    "scheme", [s for s, rule in all_schemes().items() if "encoder_decoder" in rule.families]
)
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
    assert bool(gates) == (scheme in ("rezero", "layer_scale"))


def test_every_parameter_is_optimized_once(config: Callable[..., Config]) -> None:
    c = config({"scheme": "rezero"})
    model = build(c, VOCABULARIES)
    groups = optimizer(model.parameters(), c.optim, fused=True).param_groups
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


# Factors on rate and epsilon


def factored(c: Config) -> tuple[Any, Optimizer]:
    model = build(c, VOCABULARIES)
    return model, optimizer(model.parameters(), c.optim, fused=True, factors=model.factors())


def test_without_factors_there_are_the_two_groups_of_decay(config: Callable[..., Config]) -> None:
    for scheme in ("deepnorm", "rezero", "admin", "normformer", "dlcl"):
        _, steps = factored(config({"scheme": scheme, "optim.weight_decay": 0.5}))
        assert [g["weight_decay"] for g in steps.param_groups] == [0.5, 0.0], scheme
        assert {(g["lr"], g["eps"]) for g in steps.param_groups} == {(3e-3, 1e-8)}, scheme


# name of the scheme, its options, and (rate, epsilon) of a matrix, a bias and a norm's gain at 4
# layers, as factors: arXiv:2505.01618 Table 1 with m = 4 / 2, and design.md section 8
FACTORED = [
    ("complete_p", {}, (1.0, 0.5), (1.0, 0.5), (1.0, 0.5)),
    ("complete_p", {"exponent": 0.5}, (2**-0.5, 2**-0.5), (2**-0.5, 2**-0.5), (2**-0.5, 2**-0.5)),
    ("complete_p", {"base_depth": 1}, (1.0, 0.25), (1.0, 0.25), (1.0, 0.25)),
    ("deepnorm", {"norm_lr": "depth"}, (1.0, 1.0), (1.0, 1.0), (8**-0.5, 1.0)),
]


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize(("scheme", "options", "matrix", "bias", "norm"), FACTORED)
def test_a_schemes_factors_reach_the_optimizer(
    scheme: str,
    options: dict[str, Any],
    matrix: tuple[float, float],
    bias: tuple[float, float],
    norm: tuple[float, float],
    kind: str,
    config: Callable[..., Config],
) -> None:
    changes = {"scheme": scheme, "scheme_options": options, "model.depth": 4, "optim.name": kind}
    model, steps = factored(config(changes | {"optim.weight_decay": 0.5, "model.qk_norm": True}))
    held = {id(p): group for group in steps.param_groups for p in group["params"]}
    assert len(held) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        group, block = held[id(parameter)], ".blocks." in name
        own = matrix if parameter.ndim == 2 else norm if "norm" in name else bias
        lr, eps = own if block else (1.0, 1.0)
        assert group["lr"] == pytest.approx(3e-3 * lr, rel=1e-12), name
        if kind != "sgd":
            assert group["eps"] == pytest.approx(1e-8 * eps, rel=1e-12), name
        assert group["weight_decay"] == (0.5 if parameter.ndim == 2 else 0.0), name
    assert steps.param_groups[0]["lr"] == 3e-3  # what is logged


def test_a_schedule_multiplies_each_groups_own_rate(config: Callable[..., Config]) -> None:
    # One SGD step at half the rate: norms move by their factor of it, everything else by all of it.
    changes = {"optim.name": "sgd", "optim.lr": 0.5, "optim.warmup_steps": 2, "train.steps": 1}
    moved = {}
    for norm_lr in ("published", "depth"):
        c = config(changes | {"scheme_options": {"norm_lr": norm_lr}})
        with pytest.MonkeyPatch.context() as patch:
            built: list[Any] = []
            patch.setattr(
                "harness.training.train.build", lambda *a, b=built: b.append(build(*a)) or b[-1]
            )
            curves = train(c, HERE).curves
        assert curves.values["lr"] == [0.25]
        start = dict(build(c, VOCABULARIES).named_parameters())
        moved[norm_lr] = {n: (p - start[n]).detach() for n, p in built[0].named_parameters()}
    for name, step in moved["published"].items():
        factor = 4**-0.5 if ".norms." in name else 1.0  # four sublayers
        torch.testing.assert_close(moved["depth"][name], factor * step, rtol=1e-3, atol=1e-7)


def test_an_epsilon_of_its_own_changes_the_step() -> None:
    weights = [torch.nn.Parameter(torch.ones(1, 1)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.full((1, 1), 1e-3)
    options = Optim(lr=0.1, eps=1e-3)
    factors = {weights[1]: Factors(lr=0.5, eps=3.0)}
    optimizer(weights, options, fused=True, factors=factors).step()
    # Adam's first step is lr g / (|g| + eps)
    assert 1 - weights[0].item() == pytest.approx(0.1 * 1e-3 / 2e-3, rel=1e-3)
    assert 1 - weights[1].item() == pytest.approx(0.05 * 1e-3 / 4e-3, rel=1e-3)


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
