"""From rows to figures and tables. No torch, no Optuna, no MLflow: a clone redraws everything."""

from pathlib import Path

from harness.results.store import Results, Table
from harness.sweep.study import ROOT, load


def evidence(study: str, folder: Path = ROOT / "results") -> Table:
    """What a study has measured, as it is committed; MissingRuns where it has not run."""
    return Results(folder, load(study)).table()
