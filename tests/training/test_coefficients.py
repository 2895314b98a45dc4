"""Learned coefficients by block: what each step uses, against training followed by hand."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.data import tasks
from harness.data.batches import as_batch
from harness.model.initialise import calibrate
from harness.model.layers import Factors
from harness.schemes import Learned, Place, Wiring, on, scheme
from harness.schemes.registry import REGISTRY
from harness.training.config import Config
from harness.training.curves import Curves
from harness.training.train import build, train

HERE = Path()
PAIR = {"model.family": "encoder_decoder", "model.decoder_depth": 3}
STEPS = 4


def followed(c: Config, read: Callable[[Any], list[float]]) -> list[list[float]]:
    """What `read` finds in the model in each step, and after the last; in float64, by Adam."""
    task = tasks.load(c.data, HERE, c.model.family, c.train.length)
    model = build(c, task.vocabularies)
    calibrate(model, *as_batch(task.train(c.seed, 0, c.train.batch)).model_inputs)
    model = model.double()
    assert set(model.factors().values()) <= {Factors()}
    adam = torch.optim.Adam(model.parameters(), lr=c.optim.lr, betas=(0.9, 0.98), eps=1e-8)
    found = []
    for step in range(c.train.steps):
        found.append(read(model))
        batch = as_batch(task.train(c.seed, step, c.train.batch))
        adam.zero_grad()
        logits_BTV = model(*batch.model_inputs)
        torch.nn.functional.cross_entropy(
            logits_BTV.flatten(0, 1), batch.targets_BT.flatten(), ignore_index=-100
        ).backward()
        adam.step()
    return [*found, read(model)]


def coefficients(curves: Curves) -> set[str]:
    return {name for name in curves.values if name.startswith("coefficient/")}


@pytest.mark.parametrize(
    ("name", "series", "kind", "coefficient"),
    [
        ("rezero", {"layer.branch"}, "ffn", "branch"),
        ("admin", {"self.skip", "cross.skip", "ffn.skip"}, "cross", "skip"),
        ("layer_scale", {"self.branch", "cross.branch", "ffn.branch"}, "cross", "branch"),
        ("normformer", {"self.inner_scale"}, "self", "inner_scale"),
    ],
)
def test_a_step_has_the_coefficients_that_it_uses_by_block(
    name: str, series: set[str], kind: str, coefficient: str, config: Callable[..., Config]
) -> None:
    c = config(PAIR | {"scheme": name, "train.steps": STEPS})
    _, curves, _ = train(c, HERE)
    expected = {f"coefficient/decoder/{each}" for each in series}
    of_encoder = {each for each in series if not each.startswith("cross")}
    assert coefficients(curves) == expected | {f"coefficient/encoder/{s}" for s in of_encoder}
    owner = "layer" if name == "rezero" else kind
    found = f"coefficient/decoder/{owner}.{coefficient}"
    assert curves.steps[found] == [*range(STEPS), STEPS]

    def read(model: Any) -> list[float]:
        blocks = model.stacks["decoder"].blocks
        return [float(getattr(block[kind], coefficient).detach().mean()) for block in blocks]

    rows = followed(c, read)
    assert len(rows[0]) == 3
    assert curves.values[found] == [pytest.approx(row, rel=1e-4, abs=1e-7) for row in rows]
    assert rows[0] != rows[1] != rows[-1]


def test_dense_weights_are_kept_by_block_and_whole_at_both_ends(
    config: Callable[..., Config],
) -> None:
    c = config({"scheme": "dlcl", "model.depth": 3, "train.steps": STEPS})
    _, curves, _ = train(c, HERE)
    whole = {f"coefficient/decoder/dense.{layer}" for layer in (1, 2, 3, 4)}
    assert coefficients(curves) == whole | {"coefficient/decoder/dense"}
    flat = followed(c, lambda m: torch.cat(list(m.stacks["decoder"].dense.weights)).tolist())
    for step, row in enumerate(flat):  # 1, 2, 3 and 4 weights: the last of each but the first
        latest = curves.values["coefficient/decoder/dense"][step]
        assert latest == pytest.approx([row[2], row[5], row[9]], rel=1e-4)
    assert curves.steps["coefficient/decoder/dense"] == [*range(STEPS), STEPS]
    ends = {1: slice(0, 1), 2: slice(1, 3), 3: slice(3, 6), 4: slice(6, 10)}
    for layer, own in ends.items():
        series = f"coefficient/decoder/dense.{layer}"
        assert curves.steps[series] == [0, STEPS]
        expected = [pytest.approx(row[own], rel=1e-4) for row in (flat[0], flat[-1])]
        assert curves.values[series] == expected


def test_of_many_dense_layers_sixteen_are_kept_whole(config: Callable[..., Config]) -> None:
    small = {"model.width": 8, "model.ffn": 8, "train.steps": 1}
    _, curves, _ = train(config(small | {"scheme": "dlcl", "model.depth": 40}), HERE)
    layers = sorted(int(s.rpartition(".")[2]) for s in coefficients(curves) if "." in s)
    assert len(layers) == 16
    assert (layers[0], layers[-1]) == (1, 41)  # what follows the last layer is the 41st


@pytest.fixture
def own() -> Iterator[str]:
    """A scheme whose feed-forward has a coefficient from layer 2 on, drawn from 0.1 a layer."""

    @scheme("none")
    def partly(at: Place) -> Wiring:
        """x + a F(LN(x)), a learned from l / 10 in feed-forwards from layer 2 on"""
        learns = at.sublayer == "ffn" and at.layer > 1
        return Wiring(norms=on("input"), branch=Learned(at.layer / 10) if learns else 1.0)

    yield "partly"
    del REGISTRY["partly"]


def test_a_block_without_the_coefficient_keeps_its_number(
    own: str, config: Callable[..., Config]
) -> None:
    told: list[tuple[int, dict[str, float]]] = []
    c = config({"scheme": own, "model.depth": 4, "train.steps": 60})
    _, curves, _ = train(c, HERE, lambda step, scalars: told.append((step, scalars)))
    series = "coefficient/decoder/ffn.branch"
    assert coefficients(curves) == {series}
    assert curves.values[series][0] == pytest.approx([math.nan, 0.2, 0.3, 0.4], nan_ok=True)
    assert len(curves.values[series]) == 61
    thin = [row for row in curves.thinned(4) if row[1] == series]
    kept = list(dict.fromkeys(step for step, *_ in thin))
    assert kept == [*range(51), 51, 54, 56, 59, 60]  # those of the training loss, and the end
    losses = [step for step, name, *_ in curves.thinned(4) if name == "loss/train"]
    assert losses == kept[:-1]
    assert [block for _, _, block, _ in thin] == [2, 3, 4] * len(kept)
    assert thin == [
        (step, series, block, curves.values[series][step][block - 1])
        for step in kept
        for block in (2, 3, 4)
    ]
    for end, block in (("first", 1), ("last", 3)):
        name = f"coefficient/{end}_decoder/ffn.branch"
        values = [(step, scalars[name]) for step, scalars in told if name in scalars]
        assert values == [(i, row[block]) for i, row in enumerate(curves.values[series])]


def test_a_run_without_coefficients_has_no_series_and_no_transfer(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.training.probes import CoefficientProbe

    monkeypatch.setattr(CoefficientProbe, "values", None)  # a call would fail
    told: set[str] = set()
    _, curves, _ = train(config({"train.steps": 2}), HERE, lambda _, scalars: told.update(scalars))
    assert not coefficients(curves)
    assert not {name for name in told if name.startswith("coefficient/")}


def test_the_last_value_is_that_of_averaged_weights(config: Callable[..., Config]) -> None:
    averaged = {"train.average": 2, "train.validate_every": 2, "train.steps": STEPS}
    _, curves, _ = train(config({"scheme": "rezero"} | averaged), HERE)
    a = curves.array("coefficient/decoder/layer.branch")
    _, plain, _ = train(config({"scheme": "rezero", "train.steps": STEPS}), HERE)
    b = plain.array("coefficient/decoder/layer.branch")
    assert a[:-1].tolist() == b[:-1].tolist()
    assert a[-1] == pytest.approx((b[2] + b[4]) / 2, rel=1e-5)
