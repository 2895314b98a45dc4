"""From rows to figures and tables. No torch, no Optuna, no MLflow: a clone redraws everything."""

from pathlib import Path

from harness.results.store import Results
from harness.results.table import Table
from harness.sweep.study import ROOT, load

# Where rows are: those of the repository, or where commands of an installed package write them.
RESULTS = ROOT / "results" if (ROOT / "harness").is_dir() else Path("results")


def evidence(study: str, folder: Path = RESULTS) -> Table:
    """What a study has measured, as it is committed; MissingRuns where it has not run."""
    return Results(folder, load(study)).table()
