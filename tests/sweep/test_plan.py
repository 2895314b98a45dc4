"""A study's cells before and after its tuning, and how a command names it."""

import re
import shlex
from pathlib import Path

import pytest

from harness.sweep.plan import Cell, Invocation, Plan, short
from harness.sweep.study import load
from tests.sweep.test_study import study

RATES = '"optim.lr": [1e-3, 3e-3]'
AXES = '{"scheme": ["post_norm", "rezero"], "seed": [0, 1, 2]}'


def tuned(
    folder: Path, tune: str = RATES, axes: str = AXES, **words: list[str]
) -> tuple[Plan, Plan]:
    """A study's plan before its tuning, and the tuning."""
    found = load(str(study(folder, axes, tune=f'{{{tune}, "seeds": [8, 9]}}')), **words)
    assert found.tuning
    return found, found.tuning


def rates(cells: tuple[Cell, ...]) -> list[tuple[str, int, float]]:
    return [(c.config.scheme, c.config.seed, c.config.optim.lr) for c in cells]


def test_every_point_runs_every_value_on_every_tuning_seed(tmp_path: Path) -> None:
    whole, tuning = tuned(tmp_path)
    assert rates(tuning.cells) == [
        (scheme, seed, rate)
        for scheme in ("post_norm", "rezero")
        for rate in (1e-3, 3e-3)
        for seed in (8, 9)
    ]
    assert tuning.file == "tuning.csv" and whole.file == "runs.csv"
    assert tuning.tried == whole.tried == {("post_norm",): 2, ("rezero",): 2}
    assert tuning.tuned == whole.tuned == ("optim.lr",)
    assert [c.values for c in tuning.cells[:2]] == [("post_norm", 8), ("post_norm", 9)]


def test_two_spellings_of_a_value_or_seed_are_tried_once(tmp_path: Path) -> None:
    path = study(tmp_path, AXES, tune='{"optim.lr": [1e-3, 0.001, 1], "seeds": [8, 8.0, 9]}')
    tuning = load(str(path)).tuning
    assert tuning and len(tuning.cells) == 2 * 2 * 2
    assert set(tuning.tried.values()) == {2}


def test_set_on_the_tuned_path_fixes_it_and_drops_the_tuning(tmp_path: Path) -> None:
    path = study(tmp_path, AXES, tune=f'{{{RATES}, "seeds": [8, 9]}}')
    fixed = load(str(path), sets=["optim.lr=0.1"])
    assert (fixed.name, fixed.tuning, fixed.tuned, fixed.tried) == (
        "mine+optim.lr=0.1",
        None,
        (),
        {},
    )
    assert {c.config.optim.lr for c in fixed.cells} == {0.1}
    assert len(fixed.cells) == 6 and not fixed.waiting


def test_set_on_one_of_two_tuned_paths_leaves_the_other_to_the_tuning(tmp_path: Path) -> None:
    two = f'{RATES}, "optim.warmup_steps": [0, 5]'
    found, tuning = tuned(tmp_path, two, sets=["optim.warmup_steps=7"])
    assert found.name == "mine+optim.warmup_steps=7"
    assert (tuning.tuned, len(tuning.cells)) == (("optim.lr",), 8)
    assert set(tuning.tried.values()) == {2}
    assert {c.config.optim.warmup_steps for c in tuning.cells} == {7}


def test_new_values_of_an_axis_make_a_variant_that_is_tuned_itself(tmp_path: Path) -> None:
    found, tuning = tuned(tmp_path, sets=["scheme=rezero,deepnorm", "seed=5"])
    assert found.name == tuning.name == "mine+scheme=rezero,deepnorm+seed=5"
    assert [c.values for c in found.waiting] == [("rezero", 5), ("deepnorm", 5)]
    assert len(tuning.cells) == 8
    _, before = tuned(tmp_path)
    assert {c.key for c in tuning.cells[:4]} == {c.key for c in before.cells[4:]}


def test_another_seed_asks_for_no_other_tuning(tmp_path: Path) -> None:
    _, before = tuned(tmp_path)
    _, after = tuned(tmp_path, sets=["seed=0,1,2,3"])
    assert after.by_key.keys() == before.by_key.keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("s+optim.lr=0.1", r"s\+optim\.lr=0\.1"),
        ("s+data.path=a_b", r"s\+data\.path=a_b"),
        ("s+data.path=a/b", r"s\+data\.path=a_b~[0-9a-f]{8}"),
        ("s+seed=" + ",".join(map(str, range(90))), r"s\+seed=0,1,2,.*~[0-9a-f]{8}"),
        ("s+data.path=" + "\u00fc" * 90, "s\\+data\\.path=\u00fc{20,}~[0-9a-f]{8}"),
    ],
)
def test_a_name_is_one_that_a_folder_can_have(name: str, expected: str) -> None:
    found = short(name)
    assert re.fullmatch(expected, found)
    assert len(found.encode()) <= 80 and "/" not in found


def test_no_two_names_become_one() -> None:
    long = "s+seed=" + ",".join(map(str, range(90)))
    names = ["s+p=a/b", "s+p=a_b", "s+p=/a", "s+p=_a", long, long + ",90", long[:80], "s+p=a//b"]
    assert len({short(name) for name in names}) == len(names)


def test_a_command_repeats_what_it_takes_and_a_shell_reads_it_back() -> None:
    named = Invocation(
        "./a b.py",
        sets=("data.directions=en>*", "optim.lr=0.1"),
        only=("seed=0",),
        name="mine",
        folders={"state": "s", "results": "r r", "data": "it's"},
    )
    sets = ["--set", "data.directions=en>*", "--set", "optim.lr=0.1", "--name", "mine"]
    for word, end in {
        "run": ["--only", "seed=0", "--state", "s", "--results", "r r", "--data", "it's"],
        "collect": ["--state", "s", "--results", "r r", "--data", "it's"],
        "plot": ["--only", "seed=0", "--results", "r r"],
    }.items():
        assert shlex.split(named.command(word)) == ["harness", word, "./a b.py", *sets, *end]
