"""Every measurement against a longhand computation in float64 on the same batches."""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import harness.training.probes.outputs
import harness.training.probes.skips
from harness.data import tasks
from harness.data.batches import Batch, as_batch
from harness.model.layers import Context
from harness.training.config import Config
from harness.training.module import LanguageModule
from harness.training.probes import branch_matrices
from harness.training.train import build, train

HERE = Path()
SCHEMES = ["post_norm", "pre_norm", "rezero", "b2t", "deepnorm"]
PAIR = {"model.family": "encoder_decoder", "model.decoder_depth": 3}


def batches(c: Config, folder: Path, count: int) -> list[Batch]:
    task = tasks.load(c.data, folder, c.model.family, c.train.length)
    return [as_batch(task.train(c.seed, i, c.train.batch)) for i in range(count)]


def first_valid(c: Config, folder: Path) -> Batch:
    task = tasks.load(c.data, folder, c.model.family, c.train.length)
    return as_batch(task.valid(c.train.batch)[0])


def fresh(c: Config, folder: Path) -> Any:
    """The config's initial model, in float64."""
    task = tasks.load(c.data, folder, c.model.family, c.train.length)
    return build(c, task.vocabularies).double()


def embedded(stack: Any, tokens_BT: Tensor) -> Tensor:
    """sqrt(D) E + sinusoids of arXiv:1706.03762 section 3.5."""
    x_BTD = math.sqrt(stack.width) * stack.embedding(tokens_BT)
    for t in range(tokens_BT.shape[1]):
        for i in range(0, stack.width, 2):
            angle = t / 10000 ** (i / stack.width)
            x_BTD[:, t, i] += math.sin(angle)
            x_BTD[:, t, i + 1] += math.cos(angle)
    return x_BTD


def streams(model: Any, batch: Batch) -> tuple[dict[str, list[Tensor]], Tensor]:
    """Each stack's stream before its first block and after every block, and the logits."""
    found: dict[str, list[Tensor]] = {}
    memory_BSD, x_BTD = None, None
    for name, stack in model.stacks.items():
        sourced = name == "encoder" and batch.source_BS is not None
        tokens, mask = (
            (batch.source_BS, batch.source_mask_BS) if sourced else (batch.inputs_BT, batch.mask_BT)
        )
        context = Context(mask, memory_BSD, batch.source_mask_BS if not sourced else None)
        x_BTD = embedded(stack, tokens)
        found[name] = [x_BTD]
        for block in stack.blocks:
            x_BTD = block(x_BTD, context)
            found[name].append(x_BTD)
        if stack.norm is not None:
            x_BTD = stack.norm(x_BTD)
        memory_BSD = x_BTD
    return found, model.output(x_BTD)


def nats(logits_BTV: Tensor, targets_BT: Tensor, smoothing: float = 0.0) -> tuple[Tensor, int]:
    """(sum over targets that count of the smoothed cross-entropy, their number)."""
    kept_BT = targets_BT != -100
    log_p_NV = logits_BTV[kept_BT].log_softmax(-1)
    true_N = log_p_NV.gather(1, targets_BT[kept_BT][:, None])[:, 0]
    loss_N = -(1 - smoothing) * true_N - smoothing * log_p_NV.mean(-1)
    return loss_N.sum(), len(loss_N)


def gradient(model: Any, step: list[Batch], smoothing: float = 0.0) -> float:
    """Leaves the gradient of the batches' mean of means in .grad; gives the token-weighted loss."""
    model.zero_grad()
    total, targets = 0.0, 0
    for batch in step:
        logits_BTV = model(*batch.model_inputs)
        loss, count = nats(logits_BTV, batch.targets_BT, smoothing)
        (loss / count / len(step)).backward()
        total += float(nats(logits_BTV.detach(), batch.targets_BT)[0])
        targets += count
    return total / targets


def norm_of(model: Any, prefix: str, roles: tuple[str, ...] = ()) -> float:
    squares = 0.0
    for name, p in model.named_parameters():
        if not name.startswith(prefix):
            continue
        if roles and not name.endswith(tuple(f".f.{role}.weight" for role in roles)):
            continue
        squares += float((p.grad**2).sum()) if p.grad is not None else 0.0
    return math.sqrt(squares)


VALUE_PATH = ("v", "o", "up", "down")


# Gradient norms


@pytest.mark.parametrize("clip", [0.0, 0.01])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_gradient_norms_at_step_0_equal_autograd_in_float64(
    scheme: str, clip: float, config: Callable[..., Config]
) -> None:
    c = config(PAIR | {"scheme": scheme, "optim.clip": clip, "train.steps": 1})
    record, curves, _ = train(c, HERE)
    model = fresh(c, HERE)
    loss = gradient(model, batches(c, HERE, 1))
    assert curves.values["loss/train"] == [pytest.approx(loss, rel=1e-6)]
    for stack, layers in (("encoder", 2), ("decoder", 3)):
        prefixes = [f"stacks.{stack}.blocks.{i}." for i in range(layers)]
        norms = [norm_of(model, prefix) for prefix in prefixes]
        matrices = [norm_of(model, prefix, VALUE_PATH) for prefix in prefixes]
        near = {"rel": 2e-5, "abs": 1e-9}
        assert curves.values[f"grad_norm/{stack}"] == [pytest.approx(norms, **near)]
        assert curves.values[f"grad_norm_matrices/{stack}"] == [pytest.approx(matrices, **near)]
        first = f"grad_norm_first_{stack}"
        assert record[f"{first}_init"] == curves.values[f"grad_norm/{stack}"][0][0]
        assert record[f"{first}_init"] == pytest.approx(norms[0], rel=2e-5)
        assert record[first] == pytest.approx(norms[0], rel=2e-5)
        assert record[f"{first}_matrices"] == pytest.approx(matrices[0], **near)
    assert curves.values["grad_norm/all"] == [pytest.approx(norm_of(model, ""), rel=2e-5)]


def test_branch_matrices_are_v_o_up_and_down_of_every_sublayer(
    config: Callable[..., Config],
) -> None:
    c = config(PAIR)
    model = build(c, (13, 13))
    named = {id(p): name for name, p in model.named_parameters()}
    block = model.stacks["decoder"].blocks[1]
    prefix = "stacks.decoder.blocks.1."
    expected = {f"{prefix}{a}.f.{role}.weight" for a in ("self", "cross") for role in "vo"}
    expected |= {f"{prefix}ffn.f.{role}.weight" for role in ("up", "down")}
    assert {named[id(p)] for p in branch_matrices(block)} == expected


def test_label_smoothing_is_in_the_gradient_and_not_in_the_loss(
    config: Callable[..., Config],
) -> None:
    c = config({"optim.label_smoothing": 0.2, "train.steps": 1})
    record, curves, _ = train(c, HERE)
    model = fresh(c, HERE)
    loss = gradient(model, batches(c, HERE, 1), smoothing=0.2)
    smoothed = norm_of(model, "stacks.decoder.blocks.0.")
    gradient(model, batches(c, HERE, 1))
    assert record["grad_norm_first_decoder_init"] == pytest.approx(smoothed, rel=2e-5)
    assert norm_of(model, "stacks.decoder.blocks.0.") != pytest.approx(smoothed, rel=1e-2)
    assert curves.values["loss/train"] == [pytest.approx(loss, rel=1e-6)]


def test_an_accumulated_step_has_the_gradient_of_all_its_batches(
    config: Callable[..., Config], corpus: Path, text_data: dict[str, Any]
) -> None:
    # Windows of a text hold equally many targets: three batches of 2 are one batch of 6.
    c = config({"data": text_data, "train.accumulation": 3, "train.batch": 2, "train.steps": 1})
    record, curves, _ = train(c, corpus)
    model = fresh(c, corpus)
    step = batches(c, corpus, 3)
    whole = Batch(
        torch.cat([b.inputs_BT for b in step]),
        torch.cat([b.targets_BT for b in step]),
        *(None, None, None),
    )
    loss = gradient(model, [whole])
    norm = norm_of(model, "stacks.decoder.blocks.0.")
    assert record["grad_norm_first_decoder_init"] == pytest.approx(norm, rel=2e-5)
    assert curves.values["loss/train"] == [pytest.approx(loss, rel=1e-6)]


def test_the_training_loss_of_a_step_weighs_its_batches_by_their_targets(
    config: Callable[..., Config],
) -> None:
    c = config({"train.accumulation": 3, "train.batch": 1, "train.length": 12, "train.steps": 1})
    step = batches(c, HERE, 3)
    assert len({b.targets for b in step}) > 1
    model = fresh(c, HERE)
    loss = gradient(model, step)
    means = [
        float(nats(model(*b.model_inputs).detach(), b.targets_BT)[0] / b.targets) for b in step
    ]
    told = train(c, HERE).curves.values["loss/train"]
    assert told == [pytest.approx(loss, rel=1e-6)]
    assert loss != pytest.approx(sum(means) / 3, rel=1e-4)


@pytest.mark.parametrize("window", [3, 4, 100])
def test_columns_are_medians_over_the_window(window: int, config: Callable[..., Config]) -> None:
    record, curves, _ = train(config({"probe.window": window, "optim.lr": 0.05}), HERE)
    norms = curves.array("grad_norm/decoder")
    matrices = curves.array("grad_norm_matrices/decoder")
    assert len(norms) == 10
    seen = min(window, 10)
    assert record["grad_norm_first_decoder"] == median(norms[:seen, 0].tolist())
    assert record["grad_norm_first_decoder_matrices"] == median(matrices[:seen, 0].tolist())
    ratios = [first / last for first, last in matrices[:seen].tolist()]
    assert record["grad_norm_ratio_decoder"] == median(ratios)
    assert record["grad_norm_first_decoder_init"] == norms[0, 0]
    if window < 10:
        assert median(norms[:, 0].tolist()) != median(norms[:window, 0].tolist())


def test_rezeros_matrices_have_no_gradient_at_step_0_but_its_gates_have(
    config: Callable[..., Config],
) -> None:
    record, curves, _ = train(config({"scheme": "rezero", "train.steps": 1}), HERE)
    assert curves.values["grad_norm_matrices/decoder"] == [[0.0, 0.0]]
    assert record["grad_norm_first_decoder_matrices"] == 0.0
    assert record["grad_norm_first_decoder_init"] > 1e-3
    assert record["grad_norm_ratio_decoder"] is None  # no step has a denominator


def test_steps_without_a_denominator_are_left_out_of_the_ratio(
    config: Callable[..., Config],
) -> None:
    record, curves, _ = train(config({"scheme": "rezero", "train.steps": 4}), HERE)
    matrices = curves.values["grad_norm_matrices/decoder"]
    assert matrices[0] == [0.0, 0.0]
    assert record["grad_norm_ratio_decoder"] == median(first / last for first, last in matrices[1:])


def test_a_gradient_of_1e25_has_a_finite_norm(
    config: Callable[..., Config], script: Callable[..., None]
) -> None:
    c = config({"train.steps": 2})
    norms = {s: x[0] for s, x in train(c, HERE).curves.values.items() if s.startswith("grad_norm")}
    script([2.0, 2.0], factors={0: 1e25})
    record, curves, _ = train(c, HERE)
    assert curves.values["grad_norm/all"] == [
        pytest.approx(1e25 * norms["grad_norm/all"], rel=1e-4)
    ]
    for series in ("grad_norm/decoder", "grad_norm_matrices/decoder"):
        expected = [1e25 * norm for norm in norms[series]]
        assert curves.values[series] == [pytest.approx(expected, rel=1e-4)]
    assert record["grad_norm_first_decoder_init"] > 1e22
    assert (record["reason"], record["diverged_at"]) == ("grad_nonfinite", 0)


# The stream


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_stream_ratio_is_the_gradient_into_a_stack_over_the_gradient_out_of_it(
    scheme: str, config: Callable[..., Config]
) -> None:
    c = config(PAIR | {"scheme": scheme, "train.steps": 3})
    record, _, _ = train(c, HERE)
    model, batch = fresh(c, HERE), batches(c, HERE, 1)[0]
    found, logits_BTV = streams(model, batch)
    loss, count = nats(logits_BTV, batch.targets_BT)
    ends = [end for stack in found.values() for end in (stack[0], stack[-1])]
    gradients = torch.autograd.grad(loss / count, ends)
    enc_in, enc_out, dec_in, dec_out = (float(g.norm()) for g in gradients)
    assert record["grad_ratio_stream_decoder"] == pytest.approx(dec_in / dec_out, rel=2e-5)
    if scheme == "rezero":  # its closed gates let nothing back into the encoder
        assert enc_out == 0.0
        assert record["grad_ratio_stream_encoder"] is None
    else:
        assert record["grad_ratio_stream_encoder"] == pytest.approx(enc_in / enc_out, rel=2e-5)


@pytest.mark.parametrize("scheme", ["pre_norm", "deepnorm"])
def test_activations_are_the_blocks_root_mean_squares_over_tokens(
    scheme: str,
    config: Callable[..., Config],
    models: list[Any],
    one_by_one: Callable[[Batch], list[Batch]],
) -> None:
    changes = {"scheme": scheme, "train.steps": 5, "probe.update_steps": 2, "model.dropout": 0.3}
    c = config(PAIR | changes)
    curves = train(c, HERE).curves
    batch = first_valid(c, HERE)
    assert batch.mask_BT is not None and batch.source_mask_BS is not None  # there is padding
    for stack in ("encoder", "decoder"):
        assert curves.steps[f"activation_rms/{stack}"] == [0, 2, 5]
    for model, at in ((fresh(c, HERE), 0), (models[0].double(), 2)):
        with torch.no_grad():
            each = [streams(model.eval(), sequence)[0] for sequence in one_by_one(batch)]
        for stack, layers in (("encoder", 2), ("decoder", 3)):
            outputs = [torch.cat([x[stack][i][0] for x in each]) for i in range(1, layers + 1)]
            scales = [float(x_ND.square().mean().sqrt()) for x_ND in outputs]
            assert curves.values[f"activation_rms/{stack}"][at] == pytest.approx(scales, rel=1e-5)


# Training followed by hand


@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_step_and_the_update_equal_training_by_hand(
    accumulation: int, config: Callable[..., Config], corpus: Path, text_data: dict[str, Any]
) -> None:
    changes: dict[str, Any] = {"data": text_data, "model.depth": 3, "optim.lr": 0.01}
    changes |= {"optim.warmup_steps": 3, "probe.update_steps": 4, "train.steps": 6}
    c = config(changes | {"scheme": "pre_norm", "train.accumulation": accumulation})
    record, curves, _ = train(c, corpus)

    model = fresh(c, corpus)
    valid = first_valid(c, corpus)
    with torch.no_grad():
        start_BTD = model.features(*valid.model_inputs)
    adam = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-8)
    order = batches(c, corpus, 6 * accumulation)
    losses, norms = [], []
    for step in range(6):
        if step == 4:
            with torch.no_grad():
                moved_BTD = model.features(*valid.model_inputs) - start_BTD
        losses.append(gradient(model, order[step * accumulation : (step + 1) * accumulation]))
        norms.append([norm_of(model, f"stacks.decoder.blocks.{i}.") for i in range(3)])
        adam.param_groups[0]["lr"] = 0.01 * min(1.0, (step + 1) / 3)
        adam.step()
    assert curves.values["loss/train"] == pytest.approx(losses, rel=1e-5)
    assert curves.array("grad_norm/decoder") == pytest.approx(torch.tensor(norms).numpy(), rel=1e-4)
    update = float(moved_BTD.norm() / start_BTD.norm())
    assert update > 0.01
    assert record["update_norm"] == pytest.approx(update, rel=1e-4)


def test_the_update_is_measured_in_evaluation_mode(config: Callable[..., Config]) -> None:
    # Weights that hardly move under heavy dropout: two passes in training mode would differ by 1.
    still = {"model.dropout": 0.5, "optim.name": "sgd", "optim.lr": 1e-9}
    record, _, _ = train(config(still | {"probe.update_steps": 5}), HERE)
    assert 0 <= record["update_norm"] < 1e-6


def test_a_run_shorter_than_the_probe_has_no_update(config: Callable[..., Config]) -> None:
    record, curves, _ = train(config({"train.steps": 4}), HERE)
    assert record["update_norm"] is None
    assert train(config({"train.steps": 10}), HERE).record["update_norm"] > 0
    assert curves.steps["activation_rms/decoder"] == [0]


# Blocks left out


SKIPS = {"probe.skip_blocks": True}


def loss_of(model: Any, batches: list[Batch], *without: nn.Module) -> float:
    """Nats per target over all batches, with the stream passed by some blocks as it came."""
    nats_sum, targets = 0.0, 0
    for batch in batches:
        memory_BSD, x_BTD = None, None
        for name, stack in model.stacks.items():
            sourced = name == "encoder" and batch.source_BS is not None
            tokens, mask = (
                (batch.source_BS, batch.source_mask_BS)
                if sourced
                else (batch.inputs_BT, batch.mask_BT)
            )
            context = Context(mask, memory_BSD, None if sourced else batch.source_mask_BS)
            x_BTD = embedded(stack, tokens)
            for block in stack.blocks:
                x_BTD = x_BTD if block in without else block(x_BTD, context)
            memory_BSD = x_BTD = x_BTD if stack.norm is None else stack.norm(x_BTD)
        loss, count = nats(model.output(x_BTD), batch.targets_BT)
        nats_sum, targets = nats_sum + float(loss), targets + count
    return nats_sum / targets


def all_valid(c: Config, folder: Path) -> list[Batch]:
    task = tasks.load(c.data, folder, c.model.family, c.train.length)
    return [as_batch(arrays) for arrays in task.valid(c.train.batch)]


@pytest.mark.parametrize("scheme", ["post_norm", "pre_norm", "rezero"])
def test_what_a_block_is_worth_is_the_loss_without_it(
    scheme: str,
    config: Callable[..., Config],
    models: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    c = config(PAIR | SKIPS | {"scheme": scheme, "optim.lr": 0.02, "model.dropout": 0.1})
    record, curves, _ = train(c, HERE)
    model, batches = models[0].double().eval(), all_valid(c, HERE)
    assert len({b.targets for b in batches}) > 1  # a mean over targets, not over batches
    with torch.no_grad():
        whole = loss_of(model, batches)
        costs = {
            name: [loss_of(model, batches, block) - whole for block in stack.blocks]
            for name, stack in model.stacks.items()
        }
    assert record["final_loss"] == pytest.approx(whole, rel=1e-6)
    for stack, expected in costs.items():
        assert curves.values[f"skip_cost/{stack}"] == [pytest.approx(expected, abs=1e-5)]
        assert curves.steps[f"skip_cost/{stack}"] == [10]
    flat = sorted(costs["encoder"] + costs["decoder"])
    assert record["metric_idle_blocks"] == sum(cost < 0.01 for cost in flat) / 5
    between = (flat[2] + flat[3]) / 2
    monkeypatch.setattr(harness.training.probes.skips, "IDLE_NATS", between)
    again = train(c, HERE)
    assert again.record["metric_idle_blocks"] == 3 / 5

    blocks = [block for stack in model.stacks.values() for block in stack.blocks]
    order = sorted(zip(costs["encoder"] + costs["decoder"], range(5), strict=True))
    cheapest = [blocks[i] for _, i in order]
    with torch.no_grad():
        together = [loss_of(model, batches, *cheapest[:n]) - whole for n in range(1, 6)]
    assert again.curves.values["skip_cost_cumulative"] == [pytest.approx(together, abs=1e-5)]
    assert again.curves.steps["skip_cost_cumulative"] == [10]
    assert again.record["metric_idle_cost"] == again.curves.values["skip_cost_cumulative"][0][2]
    monkeypatch.setattr(harness.training.probes.skips, "IDLE_NATS", -math.inf)
    assert train(c, HERE).record["metric_idle_cost"] == 0.0  # no block is idle


def test_every_block_of_rezero_is_idle_as_it_is_drawn(config: Callable[..., Config]) -> None:
    record, curves, _ = train(config(SKIPS | {"scheme": "rezero", "train.steps": 0}), HERE)
    assert curves.values["skip_cost/decoder"] == [[0.0, 0.0]]
    assert curves.values["skip_cost_cumulative"] == [[0.0, 0.0]]
    assert (record["metric_idle_blocks"], record["metric_idle_cost"]) == (1.0, 0.0)


def test_no_set_of_blocks_is_left_out_twice(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    evaluate = LanguageModule.evaluate
    monkeypatch.setattr(
        LanguageModule, "evaluate", lambda *args: (calls.append(1), evaluate(*args))[1]
    )
    train(config(SKIPS | {"model.depth": 4, "train.steps": 0}), HERE)
    assert len(calls) == 1 + 4 + 3  # all blocks, each left out alone, and 2 to 4 of them


def test_blocks_are_left_out_only_where_asked_and_nothing_else_changes(
    config: Callable[..., Config],
) -> None:
    asked, plain = (train(config(changes), HERE) for changes in (SKIPS, {}))
    metrics = {"metric_idle_blocks", "metric_idle_cost"}
    assert asked.record.keys() - plain.record.keys() == metrics
    series = {"skip_cost/decoder", "skip_cost_cumulative"}
    assert asked.curves.values.keys() - plain.curves.values.keys() == series
    assert asked.record["final_loss"] == plain.record["final_loss"]
    assert asked.record["update_norm"] == plain.record["update_norm"]
    assert asked.curves.values["loss/train"] == plain.curves.values["loss/train"]


@pytest.mark.parametrize("every", [0, 2])
def test_a_run_that_diverged_says_nothing_of_its_blocks(
    every: int, config: Callable[..., Config], script: Callable[..., None]
) -> None:
    script([2.0, 2.0, 2.0, 2.0, math.nan])
    record, curves, _ = train(config(SKIPS | {"train.validate_every": every}), HERE)
    assert (record["outcome"], record["diverged_at"]) == ("diverged", 4)
    assert not {"metric_idle_blocks", "metric_idle_cost"} & record.keys()
    assert not {"skip_cost/decoder", "skip_cost_cumulative"} & curves.values.keys()


def test_a_run_whose_last_step_broke_it_says_nothing_of_its_blocks(
    config: Callable[..., Config], script: Callable[..., None]
) -> None:
    script([2.0] * 10, valid=math.nan)
    record, _, _ = train(config(SKIPS), HERE)
    assert record["outcome"] == "diverged"
    assert "metric_idle_blocks" not in record


# Validation and cost


@pytest.mark.parametrize("accumulation", [1, 3])
def test_validation_is_made_every_so_many_steps_and_at_the_end(
    accumulation: int, config: Callable[..., Config]
) -> None:
    changes = {"train.accumulation": accumulation, "train.validate_every": 4}
    record, curves, _ = train(config(changes), HERE)
    assert curves.steps["loss/valid"] == [4, 8, 10]
    assert record["final_loss"] == curves.values["loss/valid"][-1]
    assert record["best_loss"] == min(curves.values["loss/valid"])
    end = train(config(changes | {"train.validate_every": 5}), HERE).curves
    assert end.steps["loss/valid"] == [5, 10]


def test_the_best_loss_may_lie_before_the_end(config: Callable[..., Config]) -> None:
    # A rate that leaps too far after a good start.
    changes = {"train.validate_every": 1, "optim.lr": 0.3, "optim.warmup_steps": 20}
    record, curves, _ = train(config(changes), HERE)
    values = curves.values["loss/valid"]
    assert record["best_loss"] == min(values) < record["final_loss"] == values[-1]


def test_validation_does_not_disturb_training(config: Callable[..., Config]) -> None:
    dropout = {"model.dropout": 0.2}
    seldom = train(config(dropout), HERE)
    often = train(config(dropout | {"train.validate_every": 1}), HERE)
    assert often.curves.values["loss/train"] == seldom.curves.values["loss/train"]
    assert often.record["final_loss"] == seldom.record["final_loss"]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_seconds_are_those_of_training_batches_alone(
    accumulation: int, config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Time:
        now = 0.0

        @classmethod
        def perf_counter(cls) -> float:
            return cls.now

    def lasting(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            Time.now += seconds
            return function(*args)

        return called

    monkeypatch.setattr(harness.training.probes.outputs, "time", Time)
    step, evaluate = LanguageModule.training_step, LanguageModule.evaluate
    monkeypatch.setattr(LanguageModule, "training_step", lasting(1.0, step))
    monkeypatch.setattr(LanguageModule, "evaluate", lasting(1000.0, evaluate))
    changes = {"train.accumulation": accumulation, "train.validate_every": 2}
    assert train(config(changes), HERE).record["seconds"] == 10.0 * accumulation


def test_the_tracker_is_told_about_ten_scalars_as_they_come(config: Callable[..., Config]) -> None:
    told: list[tuple[int, dict[str, float]]] = []
    c = config(PAIR | {"train.validate_every": 5, "probe.update_steps": 3})
    record, curves, _ = train(c, HERE, lambda step, scalars: told.append((step, scalars)))
    names = {name for _, scalars in told for name in scalars}
    ends = {f"grad_norm/{end}_{stack}" for end in ("first", "last") for stack in PAIR_STACKS}
    scalars = {"loss/train", "loss/valid", "lr", "grad_norm/all", "update_norm", "source_gain"}
    assert names == scalars | ends
    of = {name: [(s, x[name]) for s, x in told if name in x] for name in names}
    assert of["loss/train"] == list(enumerate(curves.values["loss/train"]))
    assert of["update_norm"] == [(3, record["update_norm"])]
    assert of["loss/valid"] == list(zip([5, 10], curves.values["loss/valid"], strict=True))
    assert of["source_gain"] == list(zip([5, 10], curves.values["source_gain"], strict=True))
    assert of["source_gain"][-1][1] == record["metric_source_gain"]
    for stack in PAIR_STACKS:
        rows = curves.values[f"grad_norm/{stack}"]
        assert [x for _, x in of[f"grad_norm/first_{stack}"]] == [row[0] for row in rows]
        assert [x for _, x in of[f"grad_norm/last_{stack}"]] == [row[-1] for row in rows]


PAIR_STACKS = ("encoder", "decoder")
