"""What is known of cells before they run, held against what the committed runs measured."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.schemes import Place, Wiring, on, scheme
from harness.session import Places, Session
from harness.sweep import rehearsal
from harness.sweep.rehearsal import SPEED, excess, flaws, need
from harness.sweep.study import ROOT, load
from harness.training.config import Config, parse, with_value

SMOKE = load("smoke").cells[0].config


def smoke(changes: Mapping[str, Any] = {}) -> Config:
    given: Mapping[str, Any] = SMOKE.model_dump()
    for path, value in changes.items():
        given = with_value(given, path, value)
    return parse(given, "test")


def committed(study: str) -> list[tuple[Config, dict[str, str]]]:
    """Runs that came to their end, each with its config."""
    with (ROOT / "results" / study / "runs.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["outcome"] != "diverged"]
    cells = load(study).of(max(int(row["protocol"]) for row in rows)).by_key
    return [(cells[r["run_id"]].config, r) for r in rows if r["run_id"] in cells]


@pytest.mark.parametrize(
    "study", ["depth_text", "depth_sweep", "many_languages", "translation_long"]
)
def test_operations_and_memory_are_about_what_runs_measured(study: str) -> None:
    libraries = 480.0  # mebibytes of a process that trains nothing
    runs = committed(study)
    for config, row in runs:
        assert need(config).operations == pytest.approx(float(row["flops"]), rel=0.2)
    # A smaller run may come after a larger one, in a process that keeps what it had.
    memory, peak = max((need(c).memory, float(row["peak_memory_mb"])) for c, row in runs)
    assert 0.6 < memory / 2**20 / (peak - libraries) < 1.4


def test_the_speed_without_runs_is_within_what_the_committed_runs_had() -> None:
    speeds = [float(row["flops"]) / float(row["seconds"]) for _, row in committed("depth_text")]
    assert min(speeds) < 1.5 * SPEED < max(speeds)
    assert rehearsal.speed(row for _, row in committed("depth_text")) == pytest.approx(
        3e10, rel=0.1
    )


def test_no_committed_study_is_told_that_it_asks_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_memory", lambda: 8 * 2**30)
    for study in ("quick", "depth_text", "depth_sweep", "translation_long"):
        assert list(excess([cell.config for cell in load(study).cells], [])) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train.batch": 10**9}, "needs about"),
        ({"model.depth": 10**6}, "needs about"),
        ({"model.width": 10**6}, "needs about"),
        ({"train.steps": 10**9}, "takes about"),
    ],
)
def test_a_run_beyond_the_machine_is_told_without_a_wiring(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(rehearsal, "_memory", lambda: 16 * 2**30)
    config = smoke(changes)
    monkeypatch.setattr(type(config.rule), "wire", None)  # to call it would be an error
    lines = list(excess([smoke(), config], []))
    assert any(words in line for line in lines)
    (changed,) = changes
    assert all(f"{changed} {changes[changed]}" in line for line in lines)


def test_the_speed_of_finished_runs_is_that_of_the_next() -> None:
    config = smoke({"train.steps": 10**7})
    days = need(config).operations / 86400
    row = {"flops": "5e9", "seconds": "10"}
    (line,) = excess([config], [row, {"flops": "1", "seconds": ""}])
    assert line.endswith(f"takes about {days / 5e8:.2g} days at the speed of its finished runs")


def test_every_place_of_every_model_is_wired_once_for_all_its_cells() -> None:
    seen: list[Place] = []

    @scheme("none")
    def noted(at: Place, *, loud: bool = False) -> Wiring:
        """LN(x + F(x))"""
        seen.append(at)
        return Wiring(norms=on("sum"))

    cells = [
        smoke({"scheme": "noted", "scheme_options.loud": loud, "model.depth": depth, "seed": seed})
        for loud in (False, True)
        for depth in (2, 3)
        for seed in range(5)
    ]
    assert list(flaws(cells)) == []
    assert len(seen) == 2 * (2 * 2 + 2 * 3)


def test_a_scheme_that_is_another_at_some_depth_is_named_once_a_depth() -> None:
    cells = [
        smoke({"scheme": scheme, "model.depth": depth, "seed": seed, "model.norm": norm})
        for scheme in ("mix_norm", "pre_norm", "deepnorm")
        for depth in (2, 3, 4)
        for seed in (0, 1)
        for norm in ("layernorm", "rmsnorm")
    ]
    assert list(flaws(cells)) == [
        f"scheme 'mix_norm' is 'pre_norm' at model.depth {depth}: no number of the two differs "
        "there; choose another depth, option or scheme to compare them"
        for depth in (2, 3)
    ]


def test_the_depth_of_a_scheme_that_is_another_is_that_of_both_stacks() -> None:
    pair = SMOKE.model_dump() | {"scheme": "mix_norm", "data": {"name": "reverse"}}
    cells = [
        parse(with_value(pair, "model", pair["model"] | {"family": "encoder_decoder", **given}), "")
        for given in (
            {"depth": 3},
            {"depth": 2, "decoder_depth": 3},
            {"depth": 3, "decoder_depth": 4},
        )
    ]
    assert [line.partition(":")[0] for line in flaws(cells)] == [
        "scheme 'mix_norm' is 'pre_norm' at model.depth 3",
        "scheme 'mix_norm' is 'pre_norm' at model.depth 2 and 3",
    ]


def test_many_models_and_deep_ones_are_wired_in_part() -> None:
    calls = 0

    @scheme("none")
    def counted(at: Place) -> Wiring:
        """LN(x + F(x)), but not in a millionth layer"""
        nonlocal calls
        calls += 1
        if at.layer == 1_000_000:
            raise RecursionError("too deep")
        return Wiring(norms=on("sum"))

    (line,) = flaws([smoke({"scheme": "counted", "model.depth": 1_000_000})])
    assert line == (
        "scheme 'counted': decoder layer 1000000 of 1000000, self: RecursionError: too deep; "
        "such cells crash"
    )
    assert calls <= 2 * rehearsal.REHEARSED


def session(folder: Path, given: str, depths: str) -> Session:
    (folder / "mine.py").write_text(
        "from harness.schemes import Learned, Place, Wiring, on, scheme\n"
        "from harness.sweep import Study\n"
        "@scheme('none')\n"
        "def wrong(at: Place, *, hard: bool = False) -> Wiring:\n"
        "    '''LN(x + F(x)), until layer 2'''\n"
        f"    return Wiring(norms=on('sum'), **({given} if hard and at.layer > 1 else {{}}))\n"
        "STUDY = Study(base='smoke.toml', axes={'scheme': ['wrong'],\n"
        f"    'scheme_options.hard': [False, True], 'model.depth': {depths}}})\n"
    )
    places = Places(folder / "state", folder / "results", folder)
    return Session(load(str(folder / "mine.py")), places)


def test_a_wiring_that_no_model_can_have_is_refused_wherever_it_is(tmp_path: Path) -> None:
    assert session(tmp_path, "{'brnch': 2}", "[1]").check() == []
    with pytest.raises(ConfigError) as refused:
        session(tmp_path, "{'brnch': 2}", "[1, 2]").check()
    assert str(refused.value) == (
        f"{tmp_path}/mine.py: scheme 'wrong' with hard=True: decoder layer 2 of 2, self: "
        "Wiring: unknown field 'brnch' (did you mean 'branch'?)"
    )


def test_a_function_that_raises_is_named_and_its_cells_may_run(tmp_path: Path) -> None:
    assert session(tmp_path, "{'skip': 1 / 0}", "[1, 3]").check() == [
        f"{tmp_path}/mine.py: scheme 'wrong' with hard=True: decoder layer 2 of 3, self: "
        "ZeroDivisionError: division by zero; such cells crash"
    ]
