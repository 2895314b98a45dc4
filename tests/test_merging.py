"""Merging and filing rows: whatever the history, no result is lost and nothing depends on order."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import Disagreement
from harness.merging import merged
from harness.results import curves as files
from harness.results.columns import Row, differences, row
from harness.results.curves import CurvesFile
from harness.results.store import Results
from harness.sweep.ledger import Standing
from harness.sweep.study import Plan, load
from harness.training.curves import Curves

WHOLE = load("smoke")
KEYS = [cell.key for cell in WHOLE.cells]
# The study file with one scheme less.
PART = replace(WHOLE, cells=tuple(c for c in WHOLE.cells if c.config.scheme == "deepnorm"))

losses = st.floats(0.1, 9.0)
outcomes = st.sampled_from(["trained", "stalled", "diverged"])


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    outcome = draw(outcomes)
    loss = None if outcome == "diverged" else draw(losses)
    return {"outcome": outcome, "final_loss": loss, "data_sha": "a" * 12, "seconds": draw(losses)}


CRASH = {"outcome": "crashed", "reason": "ValueError"}
some_records = st.dictionaries(st.sampled_from(KEYS), records())
some_crashes = st.dictionaries(st.sampled_from(KEYS), st.just(CRASH))


def standing(accepted: Mapping[str, Any], crashed: Mapping[str, Any]) -> Standing:
    return Standing(
        accepted={key: {"record": r, "run": "r"} for key, r in accepted.items()},
        crashed={key: r for key, r in crashed.items() if key not in accepted},
    )


def as_rows(found: Mapping[str, Any], plan: Plan = WHOLE) -> dict[str, Row]:
    return {key: row(plan, plan.by_key[key], r) for key, r in found.items() if key in plan.by_key}


@given(some_records, some_crashes)
def test_what_is_only_in_the_ledger_is_written(found: Any, crashed: Any) -> None:
    rows = merged(WHOLE, {}, standing(found, crashed), None)
    assert rows == as_rows({**crashed, **found})


@given(some_records, some_crashes, some_crashes)
def test_what_is_only_in_the_results_stays_and_no_crash_replaces_it(
    on_file: Any, crashed: Any, old_crashes: Any
) -> None:
    rows = merged(WHOLE, as_rows({**old_crashes, **on_file}), standing({}, crashed), None)
    assert rows == as_rows({**crashed, **on_file})


@given(some_records, some_records, some_crashes, st.sampled_from(["results", "ledger"]))
def test_a_preference_decides_and_merging_twice_is_merging_once(
    on_file: Any, found: Any, crashed: Any, prefer: str
) -> None:
    now = standing(found, crashed)
    rows = merged(WHOLE, as_rows(on_file), now, prefer)
    for key in on_file.keys() & found.keys():
        winner = found if prefer == "ledger" else on_file
        assert not differences(rows[key], as_rows(winner)[key])
    assert merged(WHOLE, rows, now, prefer) == rows
    assert {
        k for k, r in rows.items() if r["outcome"] != "crashed"
    } == on_file.keys() | found.keys()


@given(some_records, some_records)
def test_a_difference_needs_a_preference_unless_it_is_in_cost(on_file: Any, found: Any) -> None:
    pairs = [(on_file[k], found[k]) for k in on_file.keys() & found.keys()]
    names = ("outcome", "final_loss")
    agree = all(as_text(a[name]) == as_text(b[name]) for a, b in pairs for name in names)
    if agree:
        merged(WHOLE, as_rows(on_file), standing(found, {}), None)
    else:
        with pytest.raises(Disagreement, match=r"is .+ in runs.csv and .+ in the ledger"):
            merged(WHOLE, as_rows(on_file), standing(found, {}), None)


def as_text(value: object) -> str:
    return "%.6g" % value if isinstance(value, float) else str(value)


@settings(max_examples=40)
@given(st.lists(st.tuples(some_records, st.booleans()), min_size=1, max_size=5))
def test_rows_of_changing_plans_are_never_lost_and_return(steps: Any) -> None:
    with TemporaryDirectory() as folder:
        everything: dict[str, Row] = {}
        gone: set[str] = set()
        for found, whole in steps:
            plan = WHOLE if whole else PART
            results = Results(Path(folder), plan)
            new = {k: r for k, r in as_rows(found, plan).items() if k not in everything}
            left = set(everything) - plan.by_key.keys() - gone
            assert results.write(new) == len(left)
            everything |= new
            gone = set(everything) - plan.by_key.keys()
            here = {k: r for k, r in everything.items() if k in plan.by_key}
            assert results.rows().keys() == here.keys()
            assert results.retired() == len(everything) - len(here)
        at_last = Results(Path(folder), WHOLE).rows()
        assert at_last.keys() == everything.keys()
        assert all(not differences(at_last[k], r) for k, r in everything.items())


@settings(max_examples=40)
@given(some_records)
def test_the_same_rows_are_the_same_bytes_in_any_order(found: Any) -> None:
    with TemporaryDirectory() as one, TemporaryDirectory() as two:
        rows = as_rows(found)
        first, second = Results(Path(one), WHOLE), Results(Path(two), WHOLE)
        first.write(rows)
        for key in reversed(rows):
            second.write({key: rows[key]})
        path = "smoke/runs.csv"
        assert not rows or (Path(one) / path).read_bytes() == (Path(two) / path).read_bytes()


def on_corpus(sha: str) -> dict[str, dict[str, str]]:
    return {key: {"data_sha": sha} for key in KEYS}


def test_rows_measured_on_another_corpus_retire_when_they_are_replaced(tmp_path: Path) -> None:
    results, key = Results(tmp_path, WHOLE), KEYS[0]
    a, b = "a" * 12, "b" * 12
    old, new = ({"outcome": "trained", "final_loss": 2.0, "data_sha": sha} for sha in (a, b))
    results.write(as_rows({key: old}))
    assert results.rows(on_corpus(b)) == {}
    assert results.write({}) == 0
    assert results.rows()[key]["data_sha"] == a  # not replaced yet, so not gone
    assert results.write(as_rows({key: new})) == 0  # nothing left the study
    assert results.rows(on_corpus(b)).keys() == {key}
    assert a in (tmp_path / "smoke/retired.csv").read_text().splitlines()[1].split(",")
    assert results.rows(on_corpus(a)).keys() == {key}  # the old corpus is back


def curves_of(steps: int, blocks: int, seed: int) -> Curves:
    curves = Curves()
    for step in range(steps):
        curves.add("loss/train", step, (step * 7919 + seed) % 1000 / 997)
        norms = [(step * 31 + b * 17 + seed) % 1009 / 1013 for b in range(blocks)]
        curves.add("grad_norm/decoder", step, norms)
        curves.add("coefficient/decoder/ffn.branch", step, [math.nan, *norms[:3]])
    curves.add("coefficient/decoder/ffn.branch", steps, [math.nan, 0.5, 0.5, 0.5])
    for step in (0, 21, 39, steps):  # the middle ones go where each second step is left out
        curves.add("loss/valid", step, 2.0)
        curves.add("attention_entropy/decoder", step, [1.0, 2.0])
    return curves


def test_curves_do_not_depend_on_how_many_times_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGEST_BYTES", 2**17)  # an eighth: 240 runs take half a minute
    runs = {f"{i:012x}": curves_of(150, 16, i) for i in range(30)}
    order = list(runs)
    at_once, piecewise = CurvesFile(tmp_path / "one.gz"), CurvesFile(tmp_path / "two.gz")
    at_once.write(runs, order)
    for part in (order[:12], order[12:13], order[13:]):
        piecewise.write({key: runs[key] for key in part}, order)
    assert at_once.path.read_bytes() == piecewise.path.read_bytes()
    assert at_once.path.stat().st_size < 2**17
    frame = at_once.frame()
    one = frame[frame["run_id"] == order[-1]]
    scalars = one[one["series"] == "loss/train"]["step"].tolist()
    assert scalars[:51] == list(range(51)) and scalars[-1] == 149
    assert one[one["series"] == "grad_norm/decoder"]["step"].max() == 149
    assert one[one["series"] == "loss/valid"]["step"].tolist() == [0, 21, 39, 150]
    entropies = one[one["series"] == "attention_entropy/decoder"]
    assert entropies["step"].tolist() == [0, 0, 21, 21, 39, 39, 150, 150]
    coefficients, norms = (
        one[(one["series"] == series) & (one["block"] == 2)]["step"].tolist()
        for series in ("coefficient/decoder/ffn.branch", "grad_norm/decoder")
    )
    assert coefficients == [*norms, 150]
    assert len(norms) < 80  # they were thinned


def test_infinity_and_nan_survive_in_curves(tmp_path: Path) -> None:
    curves = Curves()
    for step, value in enumerate((1.0, float("inf"), float("nan"))):
        curves.add("loss/train", step, value)
    file = CurvesFile(tmp_path / "c.gz")
    file.write({"a" * 12: Curves.loads(curves.dumps())}, [])
    values = file.frame()["value"].tolist()
    assert values[:2] == [1.0, float("inf")] and values[2] != values[2]


def test_curves_of_runs_without_steps_fit_by_leaving_out_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGEST_BYTES", 10_000)
    draw, runs = np.random.default_rng(0), {}
    for i in range(60):
        curves = runs[f"{i:012x}"] = Curves()
        curves.add("loss/train", 0, 3.0)
        for series in ("grad_norm/encoder", "grad_norm/decoder"):
            curves.add(series, 0, draw.random(200).tolist())
    order = list(runs)
    at_once, piecewise = CurvesFile(tmp_path / "one.gz"), CurvesFile(tmp_path / "two.gz")
    at_once.write(runs, order)
    for part in (order[:45], order[45:]):
        piecewise.write({key: runs[key] for key in part}, order)
    assert at_once.path.read_bytes() == piecewise.path.read_bytes()
    assert at_once.path.stat().st_size < 10_000
    frame = at_once.frame()
    blocks = frame.loc[frame["series"] == "grad_norm/decoder", "block"].unique()
    assert blocks.min() == 1 and blocks.max() == 200 and 3 <= len(blocks) < 16
