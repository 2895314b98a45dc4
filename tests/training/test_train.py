"""A run's record: repeatable bit for bit, complete, right about its cost, and golden per scheme."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import harness.training.train
from harness.data import tasks
from harness.data.baselines import baselines
from harness.data.batches import as_batch
from harness.model.initialise import calibrate
from harness.schemes import all_schemes
from harness.training.config import PROTOCOL, Config
from harness.training.train import Trained, train

HERE = Path()
PAIR = {"model.family": "encoder_decoder"}
CLOCKED = ("seconds", "peak_memory_mb", "finished")

SCRIPT = """
import hashlib, json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from harness.training.config import parse
from harness.training.train import train
record, curves, _ = train(parse(json.loads(sys.argv[1]), "test"), Path())
print(json.dumps(record), hashlib.sha256(curves.dumps()).hexdigest(), sep="\\n")
"""


def lasting(record: dict[str, Any]) -> dict[str, Any]:
    """What two runs of one cell must agree on."""
    return {name: value for name, value in record.items() if name not in CLOCKED}


def bits(trained: Trained) -> tuple[str, bytes]:
    return json.dumps(lasting(trained.record)), trained.curves.dumps()


# Repeatability


@pytest.mark.parametrize(
    "changes",
    [
        {},
        PAIR | {"scheme": "rezero", "train.accumulation": 2, "train.validate_every": 3},
        {"model.dropout": 0.3, "optim.clip": 0.5},
        {"train.precision": "bf16-mixed"},
    ],
)
def test_the_same_config_gives_the_same_bits_twice(
    changes: dict[str, Any], config: Callable[..., Config]
) -> None:
    first = bits(train(config(changes), HERE))
    torch.rand(7)  # what happened before in the process leaves no trace
    assert bits(train(config(changes), HERE)) == first


def test_the_same_config_gives_the_same_bits_in_a_fresh_process(
    config: Callable[..., Config],
) -> None:
    c = config(PAIR | {"model.dropout": 0.2, "train.accumulation": 2})
    record, curves, _ = train(c, HERE)
    given = json.dumps(c.model_dump(mode="json", exclude_none=True))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, given], capture_output=True, text=True, check=True
    )
    told, digest = done.stdout.splitlines()
    assert lasting(json.loads(told)) == json.loads(json.dumps(lasting(record)))
    assert digest == hashlib.sha256(curves.dumps()).hexdigest()


def test_another_seed_draws_other_weights_and_other_batches(config: Callable[..., Config]) -> None:
    zero, one = (train(config({"seed": seed}), HERE).record for seed in (0, 1))
    for column in ("final_loss", "grad_norm_first_decoder_init", "update_norm", "tokens"):
        assert zero[column] != one[column]
    for column in ("baseline_loss", "reference_loss", "parameters", "data_sha"):
        assert zero[column] == one[column]


def test_dropout_follows_the_seed(config: Callable[..., Config]) -> None:
    def losses(changes: dict[str, Any]) -> list[float]:
        return train(config(changes), HERE).curves.values["loss/train"]

    still = {"optim.name": "sgd", "optim.lr": 1e-9}
    plain, dropped = losses(still), losses(still | {"model.dropout": 0.3})
    assert dropped == losses(still | {"model.dropout": 0.3})
    gaps = [abs(a - b) for a, b in zip(plain, dropped, strict=True)]
    assert min(gaps) > 1e-4
    assert len({round(gap, 6) for gap in gaps}) == 10  # another mask at every step


def test_logging_changes_no_number(config: Callable[..., Config]) -> None:
    told: list[int] = []
    often = train(config(), HERE, lambda step, scalars: told.append(step), log_every=1)
    assert bits(often) == bits(train(config(), HERE, log_every=50))
    assert set(told) == set(range(11))


# The record

TRAINED = {
    *("outcome", "reason", "diverged_at", "final_loss", "best_loss", "baseline_loss"),
    *("reference_loss", "metric_accuracy", "update_norm", "steps", "tokens", "parameters"),
    *("flops", "seconds", "peak_memory_mb", "spikes", "skipped_steps", "data_sha", "wiring_sha"),
    "protocol",
    *("torch", "device", "precision", "threads", "finished"),
}


def of_stack(stack: str) -> set[str]:
    first = {f"grad_norm_first_{stack}{end}" for end in ("", "_init", "_matrices")}
    return first | {f"grad_norm_ratio_{stack}", f"grad_ratio_stream_{stack}"}


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, of_stack("decoder")),
        ({"data.name": "recall"}, of_stack("decoder")),
        (PAIR, of_stack("encoder") | of_stack("decoder") | {"metric_source_gain"}),
        (
            PAIR | {"data.name": "recall"},
            of_stack("encoder") | of_stack("decoder") | {"metric_source_gain"},
        ),
    ],
)
def test_a_record_holds_every_column_that_training_decides(
    changes: dict[str, Any], more: set[str], config: Callable[..., Config]
) -> None:
    c = config(changes)
    record, _, _ = train(c, HERE)
    assert set(record) == TRAINED | more
    task = tasks.load(c.data, HERE, c.model.family, c.train.length)
    known = baselines(task, c.train.batch)
    assert (record["baseline_loss"], record["reference_loss"]) == (known.loss, known.reference)
    assert (record["data_sha"], record["protocol"]) == (task.sha, PROTOCOL)
    device = f"cpu {torch.backends.cpu.get_cpu_capability()}"
    assert (record["torch"], record["device"]) == (torch.__version__, device)
    assert (record["threads"], record["precision"]) == (1, "32-true")
    assert (record["steps"], record["spikes"], record["skipped_steps"]) == (10, 0, 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record["finished"])
    assert 0 < record["seconds"] < 60
    assert 50 < record["peak_memory_mb"] < 100_000
    assert record["best_loss"] <= record["final_loss"]
    assert 0.0 <= record["metric_accuracy"] <= 1.0


def test_a_masked_encoder_has_the_encoders_columns(
    config: Callable[..., Config], corpus: Path, text_data: dict[str, Any]
) -> None:
    record, _, _ = train(config({"model.family": "encoder", "data": text_data}), corpus)
    assert set(record) == TRAINED | of_stack("encoder")


def test_a_record_is_plain_json(config: Callable[..., Config]) -> None:
    record, _, _ = train(config(PAIR), HERE)
    assert json.loads(json.dumps(record)) == record
    assert all(isinstance(value, str | int | float | None) for value in record.values())


def test_a_task_is_learned_where_it_can_be(config: Callable[..., Config]) -> None:
    # Four symbols to be said backwards: an encoder-decoder finds the source within 300 steps.
    changes = {"data.symbols": 4, "train.length": 4, "train.batch": 16, "train.steps": 300}
    changes |= {"model.depth": 1, "scheme": "pre_norm", "optim.lr": 0.01, "model.width": 32}
    record, _, _ = train(config(PAIR | changes | {"train.validate_every": 100}), HERE)
    assert (record["outcome"], record["reason"]) == ("trained", None)
    assert record["final_loss"] < record["baseline_loss"] / 2
    assert record["metric_source_gain"] > 0.3
    assert record["best_loss"] <= record["final_loss"]


def test_a_rate_of_nothing_stalls(config: Callable[..., Config]) -> None:
    record, _, _ = train(config({"optim.lr": 1e-12}), HERE)
    assert (record["outcome"], record["reason"]) == ("stalled", "no_progress")
    assert record["final_loss"] > record["baseline_loss"] - 0.05
    assert record["diverged_at"] is None


def test_mixed_precision_is_recorded_as_what_it_was(config: Callable[..., Config]) -> None:
    full = train(config(), HERE).record
    mixed = train(config({"train.precision": "bf16-mixed"}), HERE).record
    assert mixed["precision"] == "bf16-mixed"
    assert mixed["final_loss"] != full["final_loss"]
    assert mixed["final_loss"] == pytest.approx(full["final_loss"], rel=0.02)  # 8 bits of mantissa


def test_mixed_precision_clips(config: Callable[..., Config]) -> None:
    """Lightning refuses to where a fused optimizer takes the step."""
    losses = {
        precision: train(config({"train.precision": precision, "optim.clip": 1e-3}), HERE).record
        for precision in ("32", "bf16-mixed")
    }
    ends = [record["final_loss"] for record in losses.values()]
    assert ends[1] == pytest.approx(ends[0], rel=0.02)
    free = train(config({"train.precision": "bf16-mixed"}), HERE).record
    assert free["final_loss"] != ends[1]


# Cost


def cost_by_hand(c: Config) -> tuple[int, int]:
    """(targets, operations): matrix products of three passes, two operations a multiply-add."""
    task = tasks.load(c.data, HERE, c.model.family, c.train.length)
    D, F, V = c.model.width, c.model.ffn, task.vocabularies[1]
    targets, flops = 0, 0
    for i in range(c.train.steps * c.train.accumulation):
        arrays = task.train(c.seed, i, c.train.batch)
        B, T = arrays.inputs_BT.shape
        S = 0 if arrays.source_BS is None else arrays.source_BS.shape[1]
        targets += int((arrays.targets_BT >= 0).sum())

        def attention(queries: int, keys: int) -> int:
            projections = 2 * (2 * queries * D * D) + 2 * (2 * keys * D * D)  # q and o, k and v
            return projections + 2 * (2 * queries * keys * D)  # scores and their mixture

        decoder = attention(T, T) + 2 * (2 * T * D * F)
        encoder = attention(S, S) + 2 * (2 * S * D * F)
        cross = attention(T, S)
        layers = c.model.encoders * encoder + c.model.decoders * decoder
        layers += c.model.decoders * cross if S else 0
        flops += 3 * B * (layers + 2 * T * D * V)
    return targets, flops


@pytest.mark.parametrize(
    "changes",
    [{}, {"train.accumulation": 3}, PAIR | {"model.decoder_depth": 3}, {"data.name": "recall"}],
)
def test_tokens_are_targets_and_flops_three_forward_passes(
    changes: dict[str, Any], config: Callable[..., Config]
) -> None:
    c = config(changes)
    record, _, _ = train(c, HERE)
    assert (record["tokens"], record["flops"]) == cost_by_hand(c)


def test_parameters_are_counted(config: Callable[..., Config]) -> None:
    c = config({"scheme": "rezero", "model.depth": 3})
    D, F, V = 16, 32, 13  # 8 symbols and 5 special tokens
    block = 4 * (D * D + D) + (D * F + F) + (F * D + D) + 1  # and one gate
    record, _, _ = train(c, HERE)
    assert record["parameters"] == 3 * block + V * D + V * D


# Golden runs: one number moves, and somebody has changed what a scheme is.

# this code, seed 0: loss at step 0, first decoder block's gradient norm at step 0, loss at step 3
GOLDEN: dict[tuple[str, str, str], tuple[float, float, float]] = {
    ("post_norm", "decoder", "{}"): (2.966763, 0.908571, 2.792031),
    ("post_norm", "encoder_decoder", "{}"): (2.798802, 0.7385735, 2.671634),
    ("pre_norm", "decoder", "{}"): (2.903996, 0.9515878, 2.719408),
    ("pre_norm", "encoder_decoder", "{}"): (2.708898, 0.8226849, 2.843233),
    ("rezero", "decoder", "{}"): (3.288187, 0.1080738, 2.704308),
    ("rezero", "encoder_decoder", "{}"): (3.220885, 0.1131569, 2.755149),
    ("b2t", "decoder", "{}"): (3.046749, 0.7255392, 2.748242),
    ("b2t", "encoder_decoder", "{}"): (2.865564, 0.770749, 2.788035),
    ("deepnorm", "decoder", "{}"): (3.045085, 0.747953, 2.713486),
    ("deepnorm", "encoder_decoder", "{}"): (2.935609, 0.860452, 2.726521),
    ("b2t", "decoder", '{"init": "released"}'): (3.061501, 0.633347, 2.709445),
    ("rezero", "decoder", '{"final_norm": true}'): (3.027346, 0.1275783, 2.676089),
    ("deepnorm", "decoder", '{"alpha": false}'): (3.045603, 0.929431, 2.714174),
    ("deepnorm", "encoder_decoder", '{"beta": false}'): (2.826599, 0.8587978, 2.752005),
    ("deepnorm_glm", "decoder", "{}"): (3.042347, 0.6290766, 2.710659),
    ("admin", "decoder", "{}"): (2.99119, 0.9991473, 2.7723),
    ("admin", "encoder_decoder", "{}"): (2.814972, 1.071356, 2.763182),
    ("ds_init", "decoder", "{}"): (2.974107, 1.201822, 2.78712),
    ("ds_init", "encoder_decoder", "{}"): (2.726067, 0.9233358, 2.671062),
    ("mix_norm", "decoder", "{}"): (2.903996, 0.9515878, 2.719408),
    ("mix_norm", "encoder_decoder", "{}"): (2.708898, 0.8226849, 2.843233),
    ("keel", "decoder", "{}"): (2.908781, 0.9755596, 2.742717),
    ("sub_norm", "decoder", "{}"): (3.129414, 1.829038, 2.477258),
    ("sub_norm", "encoder_decoder", "{}"): (2.87076, 1.466866, 2.775895),
    ("normformer", "decoder", "{}"): (3.140995, 1.725158, 2.615331),
    ("normformer", "encoder_decoder", "{}"): (3.050032, 1.605713, 2.823437),
    ("reordered", "decoder", "{}"): (2.914575, 1.469093, 2.719127),
    ("reordered", "encoder_decoder", "{}"): (2.853151, 0.8629432, 2.742894),
    ("sandwich", "decoder", "{}"): (2.836306, 1.573663, 2.644925),
    ("sandwich", "encoder_decoder", "{}"): (2.717663, 1.29583, 2.714833),
    ("peri_norm", "decoder", "{}"): (2.838789, 1.770146, 2.658477),
    ("peri_norm", "encoder_decoder", "{}"): (2.699322, 1.258095, 2.754979),
    ("norm_scaling", "decoder", "{}"): (2.893552, 0.9138958, 2.724165),
    ("norm_scaling", "encoder_decoder", "{}"): (2.722807, 0.9488606, 2.854629),
    ("layer_scale", "decoder", "{}"): (3.014131, 0.1818883, 2.694253),
    ("layer_scale", "encoder_decoder", "{}"): (2.921864, 0.298083, 2.658092),
    ("complete_p", "decoder", "{}"): (2.903996, 0.9515878, 2.719408),
    ("complete_p", "encoder_decoder", "{}"): (2.708898, 0.8226849, 2.843233),
    ("dlcl", "decoder", "{}"): (2.973378, 0.4791939, 2.699648),
    ("dlcl", "encoder_decoder", "{}"): (2.873216, 0.6464794, 2.767352),
    ("t_fixup", "encoder_decoder", "{}"): (3.068524, 1.491768, 2.661766),
    ("deepnorm", "encoder_decoder", '{"encoder_constant": "torchscale"}'): (
        2.930196,
        0.8764955,
        2.73065,
    ),
    ("deepnorm", "encoder_decoder", '{"norm_lr": "depth"}'): (2.935609, 0.860452, 2.717559),
    ("admin", "encoder_decoder", '{"init": "log"}'): (2.819273, 0.860455, 2.779816),
    ("admin", "decoder", '{"init": "constant"}'): (3.022069, 0.7724607, 2.742282),
    ("admin", "encoder_decoder", '{"qkv": "fused"}'): (2.847264, 1.19273, 2.835101),
    ("sub_norm", "encoder_decoder", '{"qkv": "fused"}'): (2.901392, 1.679736, 2.728186),
    ("normformer", "decoder", '{"qkv": "fused"}'): (3.154988, 2.268339, 2.6228),
    ("normformer", "encoder_decoder", '{"decoders_only": true}'): (2.937516, 1.94315, 2.775457),
    ("dlcl", "decoder", '{"qkv": "fused"}'): (2.998434, 0.4811306, 2.708914),
    ("sandwich", "decoder", '{"init": "released"}'): (2.836311, 2.20597, 2.665601),
    ("ds_init", "decoder", '{"init": "released"}'): (2.967711, 1.037953, 2.761444),
    ("mix_norm", "decoder", '{"share": 0.5}'): (2.946346, 1.032184, 2.774174),
    ("normformer", "decoder", '{"head_scale": "none"}'): (3.140995, 1.725137, 2.615202),
    ("normformer", "decoder", '{"head_scale": "released"}'): (3.140995, 1.725197, 2.618778),
    ("normformer", "decoder", '{"residual_scale": true}'): (3.140995, 1.729464, 2.622473),
    ("peri_norm", "decoder", '{"embedding_norm": false}'): (2.836306, 1.573663, 2.644925),
    ("complete_p", "decoder", '{"base_depth": 1}'): (2.957044, 0.5513186, 2.704079),
    ("complete_p", "decoder", '{"base_depth": 1, "exponent": 0.5}'): (
        2.932002,
        0.7238709,
        2.717011,
    ),
}


def golden_run(
    scheme: str, family: str, options: str, config: Callable[..., Config]
) -> tuple[float, float, float]:
    changes = {"scheme": scheme, "model.family": family, "train.steps": 4, "optim.lr": 0.01}
    if options != "{}":
        changes["scheme_options"] = json.loads(options)
    record, curves, _ = train(config(changes), HERE)
    losses = curves.values["loss/train"]
    return losses[0], record["grad_norm_first_decoder_init"], losses[3]


@pytest.mark.parametrize(("scheme", "family", "options"), GOLDEN)
def test_golden_training_step(
    scheme: str, family: str, options: str, config: Callable[..., Config]
) -> None:
    found = golden_run(scheme, family, options, config)
    golden = GOLDEN[scheme, family, options]
    assert found == pytest.approx(golden, rel=1e-4), (
        f"{scheme} trains differently from before: {found}. Update GOLDEN only together with a "
        "raised `revision` of this scheme (its arithmetic or its initial weights were meant to "
        "change) or, if all schemes moved, a raised PROTOCOL (the loop or the task was)."
    )


def test_every_published_scheme_has_golden_runs() -> None:
    published = {
        (name, family)
        for name, rule in all_schemes().items()
        if rule.function.__module__.startswith("harness.schemes.")
        for family in rule.families
        if family != "encoder"
    }
    golden = {(scheme, family) for scheme, family, options in GOLDEN if options == "{}"}
    assert golden == published, "Add the golden runs of a new scheme: GOLDEN in this file."


def test_a_profiled_scheme_is_set_by_the_first_training_batch(
    config: Callable[..., Config], models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    c = config(PAIR | {"scheme": "admin", "train.steps": 0})
    train(c, HERE)
    task = tasks.load(c.data, HERE, c.model.family, c.train.length)
    again = harness.training.train.build(c, task.vocabularies)
    batch = as_batch(task.train(c.seed, 0, c.train.batch))
    for stack in ("encoder", "decoder"):
        found = [r.skip.tolist() for b in models[0].stacks[stack].blocks for r in b.values()]
        assert found[0] == [1.0] * 16
        starts = [own[0] for own in found]
        assert all(own == [own[0]] * 16 for own in found)
        assert starts == sorted(set(starts))  # every sublayer adds variance
        other = [r.skip for b in again.stacks[stack].blocks for r in b.values()]
        assert all(bool((skip == 1).all()) for skip in other)
    calibrate(again, *batch.model_inputs)
    for set_by_train, set_here in zip(models[0].residuals, again.residuals, strict=True):
        assert torch.equal(set_by_train.skip, set_here.skip)


def test_a_run_can_be_told_to_end_before_each_batch_of_a_validation(
    config: Callable[..., Config],
) -> None:
    told: list[dict[str, float]] = []
    train(config({"train.steps": 1}), HERE, lambda step, scalars: told.append(scalars))
    batches = [scalars for scalars in told if not scalars]
    assert len(batches) == 3  # 16 sequences, by 6
    assert told[-4:-1] == batches and told[-1].keys() == {"loss/valid"}
