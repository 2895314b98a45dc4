"""Two processes that train cells together leave what one leaves, and end together."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.sweep.ledger import Ledger, how_ended
from harness.sweep.tracking import Tracker
from harness.training.curves import Curves
from tests.commands import run

ROOT = Path(__file__).parents[2]

PAIRS = '''"""Does it matter how many train?"""
import os
import harness.training.train as training
from harness.sweep import Study

if not hasattr(training, "unharmed"):
    training.unharmed = training.build

def build(config, vocabularies):
    if {fails}:
        raise RuntimeError("planted")
    return training.unharmed(config, vocabularies)

training.build = build
STUDY = Study(
    base={{
        "scheme": "deepnorm", "seed": 0,
        "model": {{"family": "decoder", "depth": 2, "width": 16, "heads": 2, "ffn": 32}},
        "data": {data},
        "optim": {{"lr": 1e-2, "warmup_steps": 4, "clip": 0.5}},
        "train": {{
            "steps": 8, "batch": 4, "length": 8, "accumulation": 4, "validate_every": 4,
        }},
    }},
    axes={axes},
)
'''
START = """
import harness.data.ranks
from harness.cli import main

harness.data.ranks.MEETING_SECONDS = 3.0
main()
"""
REVERSE = {"name": "reverse", "symbols": 8, "valid_sequences": 16}
CODE = {"name": "code_text", "valid_windows": 8}
FAMILIES = {
    "model.family": ["encoder_decoder", "decoder"],
    "model.cross_attention": [True, False],
    "optim.lr": [1e-2, 1e8],
}


class Place:
    """A folder with a study of four batches a step, and what has become of it."""

    def __init__(self, folder: Path, fails: str, data: Any, axes: Any) -> None:
        self.folder = folder
        (folder / "shared.py").write_text(PAIRS.format(fails=fails, data=data, axes=axes))
        (folder / "start.py").write_text(START)

    def torchrun(self) -> subprocess.CompletedProcess[str]:
        """`harness worker` on two processes."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
        command += ["start.py", "worker", "./shared.py"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )

    @property
    def ledger(self) -> Ledger:
        return Ledger("shared", self.folder / ".harness", None, {})

    @property
    def tracker(self) -> Tracker:
        return Tracker("shared", self.folder / ".harness")

    def trained(self) -> dict[str, tuple[dict[str, Any], Curves]]:
        """By cell, of those that did not crash: its record, and every series."""
        accepted = self.ledger.standing().accepted
        return {k: (dict(a["record"]), self.tracker.curves(a["run"])) for k, a in accepted.items()}


def same(one: Place, two: Place) -> Iterator[str]:
    """The outcomes of cells that both have trained, checked to be the same up to rounding."""
    alone, together = one.trained(), two.trained()
    for key in alone.keys() & together.keys():
        (record, curves), (other, others) = alone[key], together[key]
        for name in (
            *("outcome", "reason", "diverged_at", "steps", "tokens", "flops", "parameters"),
            *("attempts", "spikes", "device", "precision", "threads", "data_sha"),
        ):
            assert other[name] == record[name], name
        for name in record.keys() - {"seconds", "peak_memory_mb"}:
            if isinstance(record[name], float):
                assert other[name] == pytest.approx(record[name], rel=1e-5, nan_ok=True), name
        assert others.steps == curves.steps
        for series in curves.values:
            np.testing.assert_allclose(
                others.array(series), curves.array(series), rtol=1e-5, atol=1e-9, err_msg=series
            )
        yield record["outcome"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Place]:
    """The same study worked on by one process and by two; one cell of it crashes."""
    fails = "config.optim.lr == 1e8 and not config.model.cross_attention"
    names = ("alone", "together")
    one, two = (Place(tmp_path_factory.mktemp(n), fails, REVERSE, FAMILIES) for n in names)
    run(one.folder, "worker", "./shared.py", code=1)  # for the crash
    done = two.torchrun()
    assert done.returncode == 1, done.stderr
    assert (
        "(RuntimeError: planted); try again with 'harness run ./shared.py --retry'" in done.stderr
    )
    for place in (one, two):
        run(place.folder, "collect", "./shared.py", code=1)
    return one, two


def test_two_processes_measure_what_one_does(pair: tuple[Place, Place]) -> None:
    outcomes = sorted(same(*pair))
    assert outcomes == ["diverged", "diverged", "stalled", "stalled", "stalled"]
    assert all(record["device"].startswith("cpu ") for record, _ in pair[1].trained().values())


def test_what_fails_on_all_ranks_is_the_cells_crash_and_all_go_on(
    pair: tuple[Place, Place],
) -> None:
    for place in pair:
        (crash,) = place.ledger.standing().crashed.values()
        assert (crash["outcome"], crash["reason"]) == ("crashed", "RuntimeError")
        assert "planted" in crash["error"]
        last = max(place.ledger.attempts(), key=lambda trial: trial.number)
        assert last.state.name == "COMPLETE"  # after the crash


def test_only_the_first_rank_keeps_books(pair: tuple[Place, Place]) -> None:
    for place in pair:
        assert len(place.ledger.attempts()) == len(list(place.tracker.runs())) == 6
        assert not list(place.tracker.runs("RUNNING"))
        assert (place.folder / "results/shared/runs.csv").exists()


def test_a_rank_that_fails_alone_ends_all_and_the_cell_is_free_again(tmp_path: Path) -> None:
    fails = "config.seed == 1 and os.environ.get('RANK') == '1'"
    axes = {"seed": [0, 1]}
    (tmp_path / "alone").mkdir()
    one, two = (Place(p, fails, CODE, axes) for p in (tmp_path / "alone", tmp_path))
    run(one.folder, "worker", "./shared.py", "--only", "seed=0")
    done = two.torchrun()
    assert done.returncode != 0
    assert "Parted: rank 1 of 2 failed alone" in done.stderr
    assert list(same(one, two)) == ["stalled"]  # seed 0, before
    seed_0, seed_1 = two.ledger.attempts()
    assert (seed_0.state.name, seed_1.state.name) == ("COMPLETE", "FAIL")
    assert how_ended(seed_1) == "released"


def test_batches_that_ranks_cannot_share_are_one_line_before_anything_is_claimed(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, "False", REVERSE, {"train.accumulation": [4, 3]})
    done = place.torchrun()
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "train.accumulation" in line]
    assert said == [
        "shared.py: train.accumulation: 2 processes cannot share 3 batches a step; "
        "start as many as divide it, or set a multiple"
    ]
    assert "rank      : 0" in done.stderr
    assert "exitcode  : 2 " in done.stderr  # of rank 0, as torchrun reports it
    assert not (tmp_path / ".harness").exists()
