"""Runs of no steps: the model as it is drawn, against a longhand computation in float64."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.data import tasks
from harness.data.batches import Batch, as_batch
from harness.model.layers import Context
from harness.training.config import Config
from harness.training.train import build, train

HERE = Path()
SCHEMES = ["post_norm", "pre_norm", "rezero", "b2t", "deepnorm"]
DRAWN = {"train.steps": 0}
PAIR = DRAWN | {"model.family": "encoder_decoder", "model.decoder_depth": 3}
ALONE = PAIR | {"model.cross_attention": False}
MATRICES = ("v", "o", "up", "down")
NEAR = {"rel": 2e-5, "abs": 1e-12}

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def vocabularies(c: Config, folder: Path = HERE) -> tuple[int, int]:
    return tasks.load(c.data, folder, c.model.family, c.train.length).vocabularies


def first_batches(c: Config, folder: Path = HERE) -> list[Batch]:
    task = tasks.load(c.data, folder, c.model.family, c.train.length)
    return [as_batch(task.train(c.seed, i, c.train.batch)) for i in range(c.train.accumulation)]


def drawn(c: Config, folder: Path = HERE) -> Any:
    """The config's initial model in float64, with the gradient of its first step's batches."""
    model = build(c, vocabularies(c, folder)).double()
    batches = first_batches(c, folder)
    targets = sum(batch.targets for batch in batches)
    for batch in batches:
        logits_BTV = model(*batch.model_inputs)
        kept_BT = batch.targets_BT != -100
        log_p_NV = logits_BTV[kept_BT].log_softmax(-1)
        (-log_p_NV.gather(1, batch.targets_BT[kept_BT][:, None]).sum() / targets).backward()
    return model


def norm(model: Any, prefix: str, *ends: str) -> float:
    """L2 of the gradient of the parameters that begin and end so."""
    return math.sqrt(
        sum(
            float(p.grad.square().sum())
            for name, p in model.named_parameters()
            if p.grad is not None and name.startswith(prefix) and (not ends or name.endswith(ends))
        )
    )


def normed(residual: Any, site: str, x: Tensor) -> Tensor:
    return residual.norms[site](x) if site in residual.norms else x


def branch_output(residual: Any, x_BTD: Tensor, context: Context) -> Tensor:
    """v = N_output(F(N_input(x) * input_scale)) of design.md section 2."""
    z_BTD = residual.wiring.input_scale * normed(residual, "input", x_BTD)
    v_BTD = residual.f(z_BTD, context, lambda h: normed(residual, "inner", h))
    return normed(residual, "output", v_BTD)


@torch.no_grad()
def cross_shares(model: Any, sequences: list[Batch]) -> list[float]:
    """For each decoder layer, the mean square of branch * v over that of skip * x; of sequences
    without padding, all tokens together."""
    encoder, stack = model.stacks["encoder"], model.stacks["decoder"]
    sums = torch.zeros(len(stack.blocks), 2, dtype=torch.float64)
    for batch in sequences:
        seen: list[Tensor] = []
        handles = [
            b["cross"].register_forward_pre_hook(lambda _, a, s=seen: s.append(a[0]))
            for b in stack.blocks
        ]
        context = Context(None, encoder(batch.source_BS, Context()))
        stack(batch.inputs_BT, context)
        for handle in handles:
            handle.remove()
        for layer, (block, x) in enumerate(zip(stack.blocks, seen, strict=True)):
            cross = block["cross"]
            sums[layer, 0] += (cross.branch * branch_output(cross, x, context)).square().sum()
            sums[layer, 1] += (cross.skip * x).square().sum()
    return (sums[:, 0] / sums[:, 1]).tolist()


@every_scheme
def test_no_steps_leave_the_weights_as_they_were_drawn(
    scheme: str, config: Callable[..., Config], models: list[Any]
) -> None:
    given = {"scheme": scheme, "optim.name": "adamw", "optim.weight_decay": 0.1, "optim.clip": 0.1}
    c = config(PAIR | given | {"optim.schedule": "inverse_sqrt", "optim.warmup_steps": 3})
    train(c, HERE)
    (model,) = models
    again = dict(build(c, vocabularies(c)).named_parameters())
    assert all(torch.equal(p, again[name]) for name, p in model.named_parameters())
    train(config(PAIR | given | {"train.steps": 1}), HERE)
    assert not all(torch.equal(p, again[name]) for name, p in models[1].named_parameters())


@every_scheme
def test_a_model_as_it_is_drawn_has_made_no_progress(
    scheme: str, config: Callable[..., Config]
) -> None:
    c = config(PAIR | {"scheme": scheme})
    record, curves, _ = train(c, HERE)
    assert (record["outcome"], record["reason"]) == ("stalled", "no_progress")
    assert record["steps"] == 0
    assert record["diverged_at"] is None
    assert record["tokens"] == first_batches(c)[0].targets
    assert curves.steps["loss/train"] == [0]
    assert curves.values["lr"] == [0.0]
    assert record["final_loss"] == record["best_loss"] == curves.values["loss/valid"][-1]
    valid = [as_batch(a) for a in tasks.load(c.data, HERE, c.model.family, 8).valid(6)]
    model = build(c, vocabularies(c)).double()
    nats, targets = 0.0, 0
    for batch in valid:
        log_p_BTV = model(*batch.model_inputs).detach().log_softmax(-1)
        for row_TV, wanted_T in zip(log_p_BTV, batch.targets_BT, strict=True):
            for p_V, wanted in zip(row_TV, wanted_T.tolist(), strict=True):
                if wanted != -100:
                    nats, targets = nats - float(p_V[wanted]), targets + 1
    assert record["final_loss"] == pytest.approx(nats / targets, rel=1e-6)


@pytest.mark.parametrize("steps", [1, 10])
def test_no_steps_have_no_update(steps: int, config: Callable[..., Config]) -> None:
    record, _, _ = train(config(DRAWN | {"probe.update_steps": steps}), HERE)
    assert record["update_norm"] is None


@every_scheme
@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_gradients_of_first_and_last_block_equal_autograd_in_float64(
    scheme: str, clip: float, config: Callable[..., Config]
) -> None:
    c = config(PAIR | {"scheme": scheme, "optim.clip": clip})
    record, _, _ = train(c, HERE)
    model = drawn(c)
    for stack, layers in (("encoder", 2), ("decoder", 3)):
        first, last = (f"stacks.{stack}.blocks.{i}." for i in (0, layers - 1))
        roles = tuple(f".f.{role}.weight" for role in MATRICES)
        expected = {
            f"grad_norm_first_{stack}_init": norm(model, first),
            f"grad_norm_first_{stack}": norm(model, first),
            f"grad_norm_first_{stack}_matrices": norm(model, first, *roles),
            f"grad_norm_last_{stack}": norm(model, last),
            f"grad_norm_last_{stack}_matrices": norm(model, last, *roles),
            f"grad_norm_last_{stack}_down": norm(model, f"{last}ffn.f.down.weight"),
        }
        assert {name: record[name] for name in expected} == pytest.approx(expected, **NEAR)
        if scheme == "rezero":  # closed gates: all but the last stack's own scalars are at rest
            assert record[f"grad_norm_last_{stack}_down"] == 0.0
            assert record[f"grad_norm_ratio_{stack}"] is None
        else:
            assert expected[f"grad_norm_last_{stack}_down"] > 1e-3
            assert record[f"grad_norm_ratio_{stack}"] == pytest.approx(
                norm(model, first, *roles) / norm(model, last, *roles), rel=1e-4
            )


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_a_stack_without_partner_has_the_columns_of_its_own_alone(
    family: str, config: Callable[..., Config]
) -> None:
    c = config(DRAWN | {"model.family": family, "scheme": "post_norm"})
    record, _, _ = train(c, HERE)
    model = drawn(c)
    last = f"stacks.{family}.blocks.1."
    assert record[f"grad_norm_last_{family}"] == pytest.approx(norm(model, last), **NEAR)
    down = norm(model, f"{last}ffn.f.down.weight")
    assert record[f"grad_norm_last_{family}_down"] == pytest.approx(down, **NEAR)
    assert record["branch_mean_square_ratio_cross"] is None
    other = {"encoder": "decoder", "decoder": "encoder"}[family]
    assert not [name for name in record if other in name]


def test_an_accumulated_step_is_measured_whole(config: Callable[..., Config]) -> None:
    c = config(PAIR | {"train.accumulation": 3, "train.batch": 2})
    record, _, _ = train(c, HERE)
    model = drawn(c)
    for stack, last in (("encoder", 1), ("decoder", 2)):
        prefix = f"stacks.{stack}.blocks.{last}."
        assert record[f"grad_norm_last_{stack}"] == pytest.approx(norm(model, prefix), **NEAR)
        down = norm(model, f"{prefix}ffn.f.down.weight")
        assert record[f"grad_norm_last_{stack}_down"] == pytest.approx(down, **NEAR)


@every_scheme
def test_cross_attentions_mean_square_is_that_of_what_it_adds_over_what_it_is_added_to(
    scheme: str, config: Callable[..., Config], one_by_one: Callable[[Batch], list[Batch]]
) -> None:
    c = config(PAIR | {"scheme": scheme, "train.accumulation": 2})
    record, _, _ = train(c, HERE)
    batch = first_batches(c)[0]
    assert batch.mask_BT is not None and batch.source_mask_BS is not None  # there is padding
    shares = cross_shares(build(c, vocabularies(c)).double(), one_by_one(batch))
    assert len(shares) == 3
    assert record["branch_mean_square_ratio_cross"] == pytest.approx(sum(shares) / 3, rel=2e-5)
    if scheme == "rezero":
        assert shares == [0.0] * 3
    else:
        assert max(shares) > 1.02 * min(shares)  # a mean, and not one layer's


@every_scheme
def test_an_encoder_that_no_decoder_reads_has_gradients_of_exactly_zero(
    scheme: str, config: Callable[..., Config]
) -> None:
    record, curves, _ = train(config(ALONE | {"scheme": scheme}), HERE)
    for name in ("first_encoder_init", "first_encoder", "first_encoder_matrices"):
        assert record[f"grad_norm_{name}"] == 0.0
    for end in ("", "_matrices", "_down"):
        assert record[f"grad_norm_last_encoder{end}"] == 0.0
    assert curves.values["grad_norm/encoder"] == [[0.0, 0.0]]
    assert record["grad_norm_ratio_encoder"] is None
    assert record["grad_ratio_stream_encoder"] is None
    assert record["branch_mean_square_ratio_cross"] is None
    assert record["grad_norm_first_decoder_init"] > 0.0
    assert record["grad_ratio_stream_decoder"] > 0.0
    assert record["metric_source_gain"] == 0.0


@pytest.mark.parametrize("scheme", ["post_norm", "deepnorm"])
def test_a_decoder_alone_has_gradients_of_its_own(
    scheme: str, config: Callable[..., Config]
) -> None:
    c = config(ALONE | {"scheme": scheme})
    record, _, _ = train(c, HERE)
    model = drawn(c)
    first = norm(model, "stacks.decoder.blocks.0.")
    assert record["grad_norm_first_decoder_init"] == pytest.approx(first, **NEAR)
    reading, _, _ = train(config(PAIR | {"scheme": scheme}), HERE)
    assert reading["grad_norm_first_decoder_init"] != pytest.approx(first, rel=1e-3)


def test_the_stream_ratio_is_that_of_a_run_of_steps(config: Callable[..., Config]) -> None:
    still, moving = (train(config(PAIR | {"train.steps": steps}), HERE).record for steps in (0, 3))
    for stack in ("encoder", "decoder"):
        assert still[f"grad_ratio_stream_{stack}"] == moving[f"grad_ratio_stream_{stack}"] > 0.0


def test_a_run_of_steps_has_no_columns_of_a_model_as_it_is_drawn(
    config: Callable[..., Config],
) -> None:
    still, moving = (train(config(PAIR | {"train.steps": steps}), HERE).record for steps in (0, 1))
    ends = ("", "_matrices", "_down")
    extra = {f"grad_norm_last_{stack}{end}" for stack in ("encoder", "decoder") for end in ends}
    assert still.keys() - moving.keys() == extra | {"branch_mean_square_ratio_cross"}
    assert moving.keys() <= still.keys()
