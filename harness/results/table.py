"""A study's evidence, as figures and statistics read it. No torch."""

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Table:
    """A study's evidence: runs as rows, thinned curves, and the planned cells that have no run."""

    study: str
    axes: tuple[str, ...]
    runs: pd.DataFrame
    curves: pd.DataFrame  # run_id, step, series, block, value
    missing: pd.DataFrame
    tuned: tuple[str, ...] = ()  # paths whose values were chosen for each point
    tuning: "Table | None" = None  # the runs that chose them
    selection: str = ""  # spells the selected values; empty if all cells are selected
    command: str = ""  # makes the missing runs
