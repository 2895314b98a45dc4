"""Validation against an evaluation of the trained weights that shares no code with the module."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.data import tasks
from harness.data.arrays import PAD, Arrays
from harness.data.batches import as_batch
from harness.training.config import Config
from harness.training.module import cross_entropy
from harness.training.train import build, train

HERE = Path()
PAIR = {"model.family": "encoder_decoder"}
LONG = {"train.steps": 40, "optim.lr": 0.01, "data.valid_sequences": 20}  # batches of 6, 6, 6, 2


def mask(tokens: np.ndarray | None) -> torch.Tensor | None:
    return None if tokens is None else torch.from_numpy(tokens != PAD)


def by_hand(
    model: Any, validation: list[Arrays], masked: bool = True, turn: int = 0
) -> tuple[float, float]:
    """(loss, accuracy) in float64; each sequence reads the source `turn` places before its own."""
    nats, right, count = 0.0, 0, 0
    for arrays in validation:
        source = arrays.source_BS
        if source is not None:
            rows = [(i - turn) % len(source) for i in range(len(source))]
            source = source[rows]
        with torch.no_grad():
            logits = model(
                torch.from_numpy(arrays.inputs_BT),
                mask(arrays.inputs_BT) if masked else None,
                None if source is None else torch.from_numpy(source),
                mask(source),
            ).numpy()
        for row, targets in zip(logits, arrays.targets_BT, strict=True):
            for scores, target in zip(row, targets, strict=True):
                if target < 0:
                    continue
                nats += (
                    math.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[target]
                )
                right += int(scores.argmax()) == target
                count += 1
    return nats / count, right / count


def validation(c: Config, folder: Path) -> list[Arrays]:
    task = tasks.load(c.data, folder, c.model.family, c.train.length)
    return task.valid(c.train.batch)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        PAIR,
        PAIR | {"optim.label_smoothing": 0.3},
        PAIR | {"model.dropout": 0.3},
        {"data.name": "recall"},
        PAIR | {"data.name": "recall"},
    ],
)
def test_validation_equals_an_independent_evaluation_of_the_trained_weights(
    changes: dict[str, Any], config: Callable[..., Config], models: list[Any]
) -> None:
    c = config(LONG | changes)
    record, _, _ = train(c, HERE)
    model = models[0].double().eval()
    loss, accuracy = by_hand(model, validation(c, HERE))
    assert record["final_loss"] == pytest.approx(loss, rel=1e-6)
    assert record["metric_accuracy"] == pytest.approx(accuracy, rel=1e-12)
    assert 0.0 < record["metric_accuracy"] < 1.0
    assert ("metric_source_gain" in record) == (c.model.family == "encoder_decoder")
    if "metric_source_gain" in record:
        permuted, _ = by_hand(model, validation(c, HERE), turn=1)
        assert record["metric_source_gain"] == pytest.approx(permuted - loss, abs=2e-6)
        assert abs(permuted - loss) > 1e-4


def test_a_masked_encoder_is_scored_at_masked_places_alone(
    config: Callable[..., Config], corpus: Path, text_data: dict[str, Any], models: list[Any]
) -> None:
    c = config({"model.family": "encoder", "data": text_data, "train.steps": 40, "optim.lr": 0.01})
    record, _, _ = train(c, corpus)
    arrays = validation(c, corpus)
    share = np.mean([(a.targets_BT >= 0).mean() for a in arrays])
    assert 0.05 < share < 0.4
    loss, accuracy = by_hand(models[0].double().eval(), arrays, masked=False)
    assert record["final_loss"] == pytest.approx(loss, rel=1e-6)
    assert record["metric_accuracy"] == pytest.approx(accuracy, rel=1e-12)
    assert "metric_source_gain" not in record


def test_dropout_is_off_in_validation(config: Callable[..., Config]) -> None:
    still = {"optim.name": "sgd", "optim.lr": 1e-9}
    plain = train(config(still), HERE)
    dropped = train(config(still | {"model.dropout": 0.5}), HERE)
    assert dropped.record["final_loss"] == pytest.approx(plain.record["final_loss"], rel=1e-7)
    told = dropped.curves.values["loss/train"][0]
    assert told != pytest.approx(plain.curves.values["loss/train"][0], rel=1e-3)


def test_label_smoothing_changes_training_and_leaves_reported_losses_unsmoothed(
    config: Callable[..., Config],
) -> None:
    plain = train(config(), HERE)
    smooth = train(config({"optim.label_smoothing": 0.3}), HERE)
    losses, smoothed = (x.curves.values["loss/train"] for x in (plain, smooth))
    assert smoothed[0] == losses[0]  # the same weights, the same measure
    assert smoothed[1] != losses[1]
    first = "grad_norm_first_decoder_init"
    assert smooth.record[first] != pytest.approx(plain.record[first], rel=1e-2)


def test_smoothed_cross_entropy_mixes_in_the_uniform_distribution() -> None:
    logits = torch.tensor([[[1.0, 2.0, 0.5], [0.1, 0.2, 0.3], [9.0, 9.0, 9.0]]])
    targets = torch.tensor([[1, 2, -100]])
    p = [[math.exp(x) for x in row] for row in ((1.0, 2.0, 0.5), (0.1, 0.2, 0.3))]
    logs = [[math.log(x / sum(row)) for x in row] for row in p]
    plain = -(logs[0][1] + logs[1][2]) / 2
    uniform = -(sum(logs[0]) + sum(logs[1])) / 6
    assert float(cross_entropy(logits, targets)) == pytest.approx(plain, rel=1e-6)
    mixed = float(cross_entropy(logits, targets, 0.2))
    assert mixed == pytest.approx(0.8 * plain + 0.2 * uniform, rel=1e-6)


def test_cross_entropy_is_computed_in_float32() -> None:
    logits = torch.tensor([[[1.0, 2.0, 0.5]]], dtype=torch.bfloat16)
    loss = cross_entropy(logits, torch.tensor([[0]]))
    assert loss.dtype == torch.float32
    exact = math.log(math.exp(1.0) + math.exp(2.0) + math.exp(0.5)) - 1.0
    assert float(loss) == pytest.approx(exact, rel=1e-6)


def test_validation_runs_in_the_precision_of_training(
    config: Callable[..., Config], models: list[Any]
) -> None:
    c = config({"train.precision": "bf16-mixed"})
    record, _, _ = train(c, HERE)
    model, sums, count = models[0].eval(), {True: 0.0, False: 0.0}, 0
    for arrays in validation(c, HERE):
        kept = torch.from_numpy(arrays.targets_BT >= 0)
        targets = torch.from_numpy(arrays.targets_BT)[kept]
        count += len(targets)
        for mixed in sums:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                logits = model(torch.from_numpy(arrays.inputs_BT))[kept].double()
            sums[mixed] -= float(logits.log_softmax(-1).gather(1, targets[:, None]).sum())
    assert record["final_loss"] == pytest.approx(sums[True] / count, rel=1e-6)
    assert record["final_loss"] != pytest.approx(sums[False] / count, rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_two_batches_of_unequal_lengths_have_the_gradient_of_all_their_targets(
    smoothing: float, config: Callable[..., Config], models: list[Any]
) -> None:
    changes = {"model.family": "encoder_decoder", "train.accumulation": 2, "train.steps": 1}
    changes |= {"optim.name": "sgd", "optim.lr": 1.0, "optim.label_smoothing": smoothing}
    c = config(changes)
    train(c, HERE)
    task = tasks.load(c.data, HERE, c.model.family, c.train.length)
    again = build(c, task.vocabularies)
    batches = [as_batch(task.train(c.seed, i, c.train.batch)) for i in range(2)]
    assert batches[0].targets != batches[1].targets
    total = torch.stack(
        [
            b.targets * cross_entropy(again(*b.model_inputs), b.targets_BT, smoothing)
            for b in batches
        ]
    ).sum()
    (total / sum(b.targets for b in batches)).backward()
    for trained, drawn in zip(models[0].parameters(), again.parameters(), strict=True):
        step = (drawn - trained).detach()
        assert torch.allclose(step, drawn.grad, rtol=0, atol=1e-6)
