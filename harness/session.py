"""A study at hand: its plan, its stores and its results, and how they are merged."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock

from harness.analysis import figures
from harness.analysis.records import Results, Row, differences, row
from harness.data.tasks import data_sha
from harness.errors import Disagreement
from harness.sweep.study import Cell, Plan, load


@dataclass(frozen=True)
class Places:
    """Where things are: the state with its stores, results, corpora."""

    state: Path
    results: Path
    data: Path

    @property
    def storage(self) -> str | None:
        return os.environ.get("HARNESS_STORAGE") or None


class Session:
    """A study's plan, its stores and its results, brought together."""

    def __init__(
        self, study: str, sets: Sequence[str], places: Places, only: Sequence[str] = ()
    ) -> None:
        self.study, self.places = study, places
        self.plan = load(study, sets, only)
        self.results = Results(places.results, self.plan)
        self.shas = _shas(self.plan, places.data)
        self.rows = self.results.rows(self.shas)

    @cached_property
    def ledger(self) -> Any:
        from harness.sweep.ledger import Ledger

        return Ledger(self.plan.name, self.places.state, self.places.storage, self.shas)

    @cached_property
    def tracker(self) -> Any:
        from harness.sweep.tracking import Tracker

        return Tracker(self.plan.name, self.places.state)

    @property
    def has_ledger(self) -> bool:
        return self.places.storage is not None or (self.places.state / "ledger.db").exists()

    def recover(self) -> int:
        """Closes what dead workers left open in ledger and tracker; how many attempts."""
        from harness.sweep.worker import endings

        recovered = len(self.ledger.recover())
        self.tracker.close(endings(self.ledger.attempts()))
        return recovered

    def merge(self, prefer: str | None = None) -> Any:
        """Writes what the ledger has and the results lack; gives the ledger's standing.

        Where both have a cell and differ in what was measured, `prefer` decides; without it that
        is a Disagreement.
        """
        with FileLock(self.places.state / "results.lock"):  # several commands may share a study
            standing = self.ledger.standing()
            on_file = self.results.rows(self.shas)
            self.rows = merged(self.plan, on_file, standing, prefer)
            self.results.write(self.rows)
        return standing

    def wanted(self, standing: Any = None) -> list[Cell]:
        """Cells that are to be run: chosen, and neither done nor crashed in this ledger."""
        crashed = standing.crashed if standing else {}
        done = {k for k, r in self.rows.items() if r["outcome"] != "crashed"} | crashed.keys()
        return [cell for cell in self.plan.cells if cell.key in self.plan.chosen - done]

    def job(self, cells: list[Cell]) -> Any:
        from harness.sweep.worker import Job, commit

        return Job(
            study=self.study,
            name=self.plan.name,
            configs={cell.key: cell.config.model_dump(mode="json") for cell in cells},
            shas=self.shas,
            state=self.places.state,
            data=self.places.data,
            storage=self.places.storage,
            commit=commit(),
        )

    def write_curves(self) -> None:
        """Adds the curves of runs that the results lack, as far as the tracker has them."""
        with FileLock(self.places.state / "results.lock"):
            accepted = self.ledger.standing().accepted
            present = self.results.curves.runs()
            absent = [key for key in accepted if key in self.plan.by_key and key not in present]
            if absent:
                tracked = {key: self.tracker.curves(accepted[key]["tracked"]) for key in absent}
                self.results.write_curves(tracked)

    def draw(self) -> None:
        """Figures that are out of date."""
        if self.rows:
            table = self.results.table()
            for figure in self.plan.figures:
                if figures.stale(figure, table, self.results.folder):
                    figures.draw(figure, table, self.results.folder)


def merged(
    plan: Plan, on_file: Mapping[str, Row], standing: Any, prefer: str | None
) -> dict[str, Row]:
    """Rows of results and ledger together; a crash never replaces a result."""
    rows = {key: r for key, r in on_file.items() if r["outcome"] != "crashed"}
    for key, record in {**standing.crashed, **standing.accepted}.items():
        if key not in plan.by_key:
            continue
        mine = row(plan, plan.by_key[key], record)
        if key in rows and key in standing.accepted and prefer != "results":
            differing = differences(rows[key], mine)
            if differing and not prefer:
                name, (there, here) = next(iter(differing.items()))
                raise Disagreement(
                    f"{plan.name}: run {key}: {name} is {there or 'empty'} in runs.csv and "
                    f"{here or 'empty'} in the ledger; say --prefer results or --prefer ledger"
                )
            if differing:
                rows[key] = mine
        rows.setdefault(key, mine)
    return rows


def _shas(plan: Plan, data: Path) -> dict[str, str]:
    """By cell: the hash of its corpus as it is at hand."""
    options = {cell.config.data for cell in plan.cells}
    at_hand = {option: data_sha(option, data) for option in options}
    return {cell.key: at_hand[cell.config.data] for cell in plan.cells}
