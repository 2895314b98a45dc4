"""A study at hand: its plan, its stores and its results."""

import os
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from harness.data.tasks import data_sha
from harness.data.tasks import load as load_task
from harness.data.translation.options import Translation
from harness.errors import ConfigError, MissingRuns
from harness.merging import disagreeing, merged
from harness.results import variants
from harness.results.columns import Row
from harness.results.store import Results
from harness.sweep.plan import Cell, Plan
from harness.sweep.rehearsal import excess, flaws
from harness.sweep.study import shown

if TYPE_CHECKING:
    from harness.sweep.ledger import Ledger, Standing
    from harness.sweep.tracking import Tracker
    from harness.sweep.worker import Job


@dataclass(frozen=True)
class Places:
    """Where things are: the state with its stores, results, corpora."""

    state: Path
    results: Path
    data: Path

    @property
    def storage(self) -> str | None:
        return os.environ.get("HARNESS_STORAGE") or None

    @property
    def has_ledger(self) -> bool:
        return self.storage is not None or (self.state / "ledger.db").exists()


class Session:
    """A study's plan, its stores and its results, brought together.

    `rows` are the runs of the plan, `trials` those of its tuning, which decide what the plan is.
    `reused` names studies whose cells are taken over; those of its own variants always are.
    """

    def __init__(self, plan: Plan, places: Places, reused: Sequence[str] = ()) -> None:
        self.places, self.declared = places, plan
        self.digests: dict[str, dict[str, str]] = {}  # of each cell's corpus and scheme, by key
        self.moved = 0  # rows that left the results because the study no longer has their values
        self.results = Results(places.results, plan)
        # What variants of the study, and studies that are named, have measured of its cells.
        self.related = variants.related(places.results, plan, reused)
        self.offers = variants.offers(self.related)
        self._take_in(None, None)

    @property
    def plan(self) -> Plan:
        """As far as its tuned values are chosen."""
        return self.results.plan

    @property
    def parts(self) -> list[tuple[Results, dict[str, Row]]]:
        """The tuning, if there is one, and the runs: each with its results and its rows."""
        tuning = [(self.results.tuning, self.trials)] if self.results.tuning else []
        return [*tuning, (self.results, self.rows)]

    @property
    def cells(self) -> list[Cell]:
        """Those that can be run: of the tuning, and those whose values it has chosen."""
        return [cell for results, _ in self.parts for cell in results.plan.cells]

    @property
    def selected(self) -> list[Cell]:
        """The cells that this command is about, as far as they can be run."""
        return [cell for cell in self.cells if cell.selected]

    @property
    def selected_rows(self) -> dict[str, Row]:
        rows = {**self.trials, **self.rows}
        return {cell.key: rows[cell.key] for cell in self.selected if cell.key in rows}

    @property
    def size(self) -> int:
        """Selected cells in all, including those of the tuning."""
        return len(self.selected) + len(self.plan.selected_waiting)

    @cached_property
    def ledger(self) -> "Ledger":
        from harness.sweep.ledger import Ledger

        return Ledger(self.plan.name, self.places.state, self.places.storage, self.digests)

    @cached_property
    def tracker(self) -> "Tracker":
        from harness.sweep.tracking import Tracker

        return Tracker(self.plan.name, self.places.state)

    @property
    def has_ledger(self) -> bool:
        return self.places.has_ledger

    def recover(self) -> int:
        """Closes what dead workers left open in ledger and tracker; how many attempts."""
        from harness.sweep.worker import endings

        recovered = len(self.ledger.recover())
        self.tracker.close(endings(self.ledger))
        return recovered

    def merge(self, prefer: str | None = None) -> "Standing":
        """Writes what the ledger has and the results lack; gives the ledger's standing.

        Where both have a cell and differ in what was measured, `prefer` decides for good; without
        it that is a Disagreement.
        """
        with self.results.lock():
            standing = self.ledger.standing()
            settled = self._take_in(standing, prefer)
            if prefer == "results" and settled:
                self.ledger.settle(settled)
            for results, rows in self.parts:
                self.moved += results.write(rows)
        return standing

    def look(self) -> "Standing":
        """As `merge`, but writes nothing."""
        standing = self.ledger.standing()
        self._take_in(standing, "results")
        return standing

    def _take_in(self, standing: "Standing | None", prefer: str | None) -> set[str]:
        """Reads the results and adds what the ledger has; the cells in which the two differ."""
        differing: set[str] = set()

        def together(results: Results) -> dict[str, Row]:
            nonlocal standing
            if not results.plan.by_key.keys() <= self.digests.keys():
                self.digests |= _digests(results.plan, self.places.data)
                standing = standing and self.ledger.standing()  # results on other corpora are out
            on_file = results.rows(self.digests)
            measured = {key for key, r in on_file.items() if r["outcome"] != "crashed"}
            measured |= standing.accepted.keys() if standing else set()
            on_file |= self._offered(results, results.plan.by_key.keys() - measured)
            if standing is None:
                return on_file
            differing.update(disagreeing(results.plan, on_file, standing))
            return merged(results.plan, on_file, standing, prefer)

        self.trials = {}
        while read := self.results.tuning:  # its rows may make it try values beyond its grid
            found = together(read)
            self.results = Results(self.places.results, self.declared, found)
            assert self.results.tuning
            tried = self.results.tuning.plan.by_key
            if tried.keys() <= read.plan.by_key.keys():
                self.trials = {key: r for key, r in found.items() if key in tried}
                break
        self.rows = together(self.results)
        return differing

    def _offered(self, results: Results, keys: Set[str]) -> dict[str, Row]:
        """Rows of other folders of these cells, on the corpora and schemes at hand."""
        found: dict[str, Row] = {}
        for key in self.offers.keys() & keys:
            fitting = (results.as_planned(r, self.digests) for r in self.offers[key])
            if first := next(filter(None, fitting), None):
                found[key] = first
        return found

    def wanted(self, standing: "Standing | None" = None) -> list[Cell]:
        """Cells that can be run: selected, and neither done nor crashed in this ledger."""
        wanted: list[Cell] = []
        for results, rows in self.parts:
            done = {key for key, r in rows.items() if r["outcome"] != "crashed"}
            done |= standing.crashed.keys() if standing else set()
            wanted += [cell for cell in results.plan.selected if cell.key not in done]
        return wanted

    def job(self, cells: list[Cell]) -> "Job":
        from harness.sweep.worker import Job, commit

        return Job(
            source=self.plan.source,
            code=self.plan.code,
            name=self.plan.name,
            configs={cell.key: cell.config.model_dump(mode="json") for cell in cells},
            digests=self.digests,
            state=self.places.state,
            data=self.places.data,
            storage=self.places.storage,
            commit=commit(),
        )

    def check(self, processes: int = 1) -> list[str]:
        """What only training would meet: a corpus too short, a precision the device lacks, batches
        of a step that the processes of a cell cannot share. In words, what filters leave out."""
        # The runs of a tuning differ from the others in seeds and in what is held out, which asks
        # for more of a corpus.
        first = self.declared.tuning or self.declared
        configs = [cell.config for cell in first.cells]
        notes: dict[str, None] = {}
        wanted = dict.fromkeys(
            (c.data, c.model.family, c.train.length, c.train.held_out) for c in configs
        )
        for options, family, length, held_out in wanted:
            try:
                task = load_task(options, self.places.data, family, length, held_out)
            except ConfigError as error:
                raise ConfigError(f"{shown(self.plan.source)}: {error}") from None
            if isinstance(options, Translation):
                from harness.data.translation.task import Parallel  # tokenizers, scipy

                assert isinstance(task, Parallel)
                notes |= dict.fromkeys(task.notes)
        left = [cell.config for cell in self.wanted()]
        where = shown(self.plan.source)
        try:
            found = [*flaws(left), *excess(left, {**self.trials, **self.rows}.values())]
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        notes |= dict.fromkeys(f"{where}: {words}" for words in found)
        for size in (c.train.accumulation for c in configs if c.train.accumulation % processes):
            raise ConfigError(
                f"{shown(self.plan.source)}: train.accumulation: {processes} processes cannot "
                f"share {size} batches a step; start as many as divide it, or set a multiple"
            )
        if any(c.train.precision == "16-mixed" for c in configs):
            import torch

            if not torch.cuda.is_available():
                where = f"{shown(self.plan.source)}: train.precision"
                raise ConfigError(f"{where}: 16-mixed needs a GPU, got none; use bf16-mixed")
        return list(notes)

    def draw(self) -> None:
        """Figures that are out of date, as far as there is something to draw."""
        if not self.rows:
            return
        from harness.analysis import figures  # half a second: only where something is drawn

        with self.results.lock():
            table = self.results.table()
            for figure in self.plan.figures:
                with suppress(MissingRuns):
                    if figures.stale(figure, table, self.results.folder):
                        figures.draw(figure, table, self.results.folder)


def _digests(plan: Plan, data: Path) -> dict[str, dict[str, str]]:
    """By cell: the digests of its corpus and its scheme as they are at hand."""
    options = {cell.config.data for cell in plan.cells}
    at_hand = {option: data_sha(option, data) for option in options}
    return {
        cell.key: {"data_sha": at_hand[cell.config.data], "wiring_sha": cell.config.wiring_sha}
        for cell in plan.cells
    }
