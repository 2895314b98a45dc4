"""What is committed under results/: whole, of the study that it names, and drawn as it stands."""

import csv
import subprocess
from pathlib import Path

import pytest

from harness.analysis.figures import stale
from harness.results.store import Results
from harness.sweep.study import load

ROOT = Path(__file__).parents[1]
COMMITTED = subprocess.run(
    ["git", "ls-files", "results/*/runs.csv"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()


def test_there_are_committed_results() -> None:
    assert COMMITTED


@pytest.mark.parametrize("path", COMMITTED)
def test_a_committed_study_is_complete_and_its_figures_show_its_rows(path: str) -> None:
    plan = load(Path(path).parent.name)
    results = Results(ROOT / "results", plan)
    table = results.table()
    assert len(table.missing) == 0
    assert table.tuning is None or len(table.tuning.missing) == 0
    with (results.folder / "runs.csv").open(newline="") as file:
        on_file = {r["run_id"] for r in csv.DictReader(file)}
    assert set(results.curves.runs()) == on_file >= set(table.runs["run_id"])
    assert (results.folder / "curves.csv.gz").stat().st_size < 2**20
    assert [figure.name for figure in plan.figures if stale(figure, table, results.folder)] == []


@pytest.mark.parametrize("path", COMMITTED)
def test_a_committed_row_comes_from_a_clean_commit(path: str) -> None:
    commits = set(Results(ROOT / "results", load(Path(path).parent.name)).table().runs["commit"])
    assert all(len(commit) == 12 for commit in commits), commits
