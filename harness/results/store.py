"""results/<study>/: one row per run in runs.csv, thinned curves beside it, and both as frames.

Rows are text from the moment they are formatted, so that the same rows are the same bytes.
"""

import csv
import io
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from filelock import FileLock

from harness.errors import MissingRuns
from harness.results import rows as rows_file
from harness.results import variants
from harness.results.choice import grown, possible, resolved
from harness.results.columns import (
    REUSED,
    Row,
    columns,
    head,
    is_number,
    measured,
    planned,
)
from harness.results.curves import CurvesFile
from harness.results.table import Table
from harness.results.translations import FILE, Kept, TranslationsFile
from harness.sweep.plan import Cell, Plan
from harness.training.config import PROTOCOL
from harness.training.curves import Curves

Digests = Mapping[str, Mapping[str, str]]  # by key: of corpus and scheme as they are at hand


class Results:
    """The folder of one plan's results; `plan` is resolved by the tuning on file, or by the rows
    of tuning that are given. ConfigError if the folder holds another study's."""

    def __init__(
        self, folder: Path, plan: Plan, tuning_rows: Mapping[str, Row] | None = None
    ) -> None:
        variants.check(folder, plan)
        self.declared = plan
        if plan.tuning:
            found = _tuning_rows(folder, plan.tuning) if tuning_rows is None else tuning_rows
            plan = resolved(plan, found)
        self.tuning = Results(folder, plan.tuning) if plan.tuning else None
        self.root, self.folder, self.plan = folder, folder / plan.name, plan
        self.curves = CurvesFile(self.folder / "curves.csv.gz")
        self.translations = TranslationsFile(self.folder / FILE)

    def lock(self) -> FileLock:
        """To be held while results are read, merged and written: commands may share a study."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / ".lock")

    def rows(self, digests: Digests | None = None) -> dict[str, Row]:
        """Rows of the plan's cells by run_id, including retired ones; without those of another
        definition of their scheme and, with `digests`, of another corpus."""
        found: dict[str, Row] = {}
        for r in self._on_file():
            key = r["run_id"]
            if key not in found and key in self.plan.by_key:
                taken = self.as_planned(r, digests)
                if taken:
                    found[key] = taken
        return found

    def as_planned(self, r: Row, digests: Digests | None) -> Row | None:
        """The row as the plan calls its cell; None if it was measured on another corpus or with
        another definition of its scheme. A row without a digest of the scheme gets today's."""
        cell = self.plan.by_key[r["run_id"]]
        today = {"wiring_sha": cell.config.wiring_sha, **(digests or {}).get(cell.key, {})}
        if r["outcome"] != "crashed":
            r = {**r, "wiring_sha": r.get("wiring_sha") or today["wiring_sha"]}
            if any(r[name] != sha for name, sha in today.items()):
                return None
        if r.get(REUSED) == self.plan.name:  # and has come back
            r = {**r, REUSED: ""}
        # Another plan may have written the row.
        return {**r, **planned(self.plan, cell)}

    def outdated(self, digests: Digests | None = None) -> list[str]:
        """One line per scheme or corpus of which rows on file do not count, with the remedy."""
        lines = self.tuning.outdated(digests) if self.tuning else []
        current, found = self.rows(digests), dict[str, tuple[str, str]]()
        for r in self._on_file():
            key = r["run_id"]
            if key in current or key not in self.plan.by_key or r["outcome"] == "crashed":
                continue
            cell = self.plan.by_key[key]
            if not cell.selected:
                continue
            sha = (digests or {}).get(key, {}).get("data_sha", r["data_sha"])
            if r["data_sha"] != sha:
                what = f"on another corpus (data_sha {r['data_sha']}, at hand {sha})"
                found[key] = what, "or name the folder of the corpus with --data"
            else:
                what = f"with another definition of scheme '{cell.config.scheme}'"
                found[key] = what, "or restore the definition"
        again = f"measure them anew with '{self.plan.command}'"
        earlier = Counter(
            r["protocol"]
            for r in self._read(self.plan.file)
            if r.get("protocol") and int(r["protocol"]) < PROTOCOL
        )
        lines += [
            f"{self.folder / self.plan.file}: {count} runs are of protocol {protocol}, this "
            f"version measures by protocol {PROTOCOL}; measure them anew with "
            f"'{self.plan.command}'"
            for protocol, count in earlier.items()
        ]
        return lines + [
            f"{self.folder / self.plan.file}: {count} runs were made {what} and do not count; "
            f"{again}, {otherwise}"
            for (what, otherwise), count in Counter(found.values()).items()
        ]

    def retired(self) -> int:
        """The number of rows on file that no cell of the present plan has or may get."""
        on_file = {r["run_id"] for name in variants.FILES for r in self._read(name)}
        parts = [self.plan, *([self.tuning.plan] if self.tuning else [])]
        return len(on_file.difference(*(plan.by_key.keys() | possible(plan) for plan in parts)))

    def write(self, rows: Mapping[str, Row]) -> int:
        """Makes the plan's file its rows in its order, `rows` before those on file; returns how
        many rows moved to retired.csv because the study no longer has their values.

        A row that is replaced by one of another corpus, definition or protocol moves there too: one
        of an earlier protocol stays until its cell has one of today's. A row is in one of the two
        files at every moment.
        """
        here, old = self._read(self.plan.file), self._read("retired.csv")
        kept: dict[str, Row] = {}
        for r in self._on_file():
            if cell := self.plan.by_key.get(r["run_id"]):
                fitting = self.as_planned(r, None)
                kept.setdefault(cell.key, fitting or {**r, **planned(self.plan, cell)})
        kept |= rows
        others = [r for r in here if r["run_id"] not in kept]
        open_keys = possible(self.plan) if others else frozenset()
        waiting = [r for r in others if r["run_id"] in open_keys]
        earlier = self._earlier(kept)
        waiting += [r for r in others if earlier.get(r["run_id"])]
        if not kept and not here and not old:
            return 0
        stay = rows_file.identities([*kept.values(), *waiting])
        gone = {
            rows_file.identity(r): r
            for r in [*old, *here]
            if rows_file.identity(r) not in stay
            and not (r["outcome"] == "crashed" and r["run_id"] in kept)
        }
        ordered = [kept[cell.key] for cell in self.plan.cells if cell.key in kept]
        replaced = [
            r["run_id"]
            for r in here
            if r["run_id"] in rows and measured(r) != measured(rows[r["run_id"]])
        ]
        if kept:  # curves of earlier protocols would have today's thinned for their room
            replaced += earlier
        self.curves.drop(replaced)
        self.translations.drop(replaced)
        variants.note(self.root, self.plan)
        if gone or old:
            before = [r for r in old if rows_file.identity(r) not in gone]
            self._write("retired.csv", [*gone.values(), *before])
        self._write(self.plan.file, [*ordered, *waiting])
        if gone or old:
            self._write("retired.csv", [gone[key] for key in sorted(gone)])
        left = {rows_file.identity(r) for r in others if r["run_id"] not in earlier} & gone.keys()
        return len(left)

    def _earlier(self, kept: Container[str]) -> dict[str, bool]:
        """By the run_ids that cells had under the earlier protocols on file: True if no row of
        today's is kept for the cell."""

        def place(plan: Plan, cell: Cell) -> tuple[object, ...]:
            paths = plan.tuned if plan.file == "tuning.csv" else ()
            return (*cell.values, *(cell.config.at(path) for path in paths))

        done = {place(self.plan, cell) for cell in self.plan.cells if cell.key in kept}
        plans = [
            Results(self.root, self.declared.of(protocol)).plan
            for protocol in self.protocols() - {PROTOCOL}
        ]
        return {c.key: place(plan, c) not in done for plan in plans for c in plan.cells}

    def write_curves(self, curves: Mapping[str, Curves]) -> None:
        """Adds curves by run_id to those at hand, in the plan's order."""
        self.curves.write(curves, [cell.key for cell in self.plan.cells])

    def take_curves(self, rows: Mapping[str, Row], folders: Iterable[Path]) -> None:
        """Adds the curves of rows that another folder has too, from the first that has both row and
        curves."""
        name = self.curves.path.name
        if found := variants.shared(rows, folders, lambda folder: CurvesFile(folder / name).rows()):
            self.curves.add(found, [cell.key for cell in self.plan.cells])

    def write_translations(
        self, found: Mapping[str, Kept], rows: Mapping[str, Row], folders: Iterable[Path]
    ) -> None:
        """Adds translations by run_id, and those of `rows` that another folder has too."""
        taken = variants.shared(
            rows, folders, lambda folder: TranslationsFile(folder / FILE).rows()
        )
        self.translations.write({**taken, **found}, self.plan)

    def table(self) -> Table:
        """The selected cells' measurements as frames; MissingRuns if there are none at all.

        Rows of an earlier protocol are shown as long as the study has no others.
        """
        at_hand = self.protocols()
        if at_hand and PROTOCOL not in at_hand:
            earlier = Results(self.root, self.declared.of(max(at_hand)))
            if earlier.plan.cells and earlier.rows():
                return earlier._table()
        return self._table()

    def protocols(self) -> set[int]:
        """Those of the rows in the plan's file."""
        return {int(r["protocol"]) for r in self._read(self.plan.file) if r.get("protocol")}

    def _table(self) -> Table:
        found = self.rows()
        kept = [found[cell.key] for cell in self.plan.selected if cell.key in found]
        if not kept:
            raise self.no_runs()
        absent = [cell for cell in self.plan.selected if cell.key not in found]
        missing = [planned(self.plan, cell) for cell in (*absent, *self.plan.selected_waiting)]
        names = columns(self.plan, kept)
        runs, lacking = (self._frame(names, part) for part in (kept, missing))
        own = self.own(kept)
        curves = self.curves.frame()
        return Table(
            self.plan.name,
            self.plan.axes,
            runs,
            curves[curves["run_id"].isin(own)],
            lacking[[*head(self.plan.axes), *(() if self.tuning else self.plan.tuned)]],
            self.plan.tuned,
            self.tuning.table() if self.tuning else None,
            self.plan.selection,
            self.plan.command,
        )

    def own(self, rows: Iterable[Row]) -> set[str]:
        """The runs of these rows whose curves and translations count: not those of another
        definition, while the row that counts is a retired one."""
        stay = rows_file.identities(rows)
        return {r["run_id"] for r in self._read(self.plan.file) if rows_file.identity(r) in stay}

    def no_runs(self) -> MissingRuns:
        """The error for a selection without any run, with its remedy."""
        none = f"{self.folder}: no runs yet; make them with '{self.plan.command}'"
        none += variants.hint(self.root, self.plan)
        return MissingRuns(" ".join(self.outdated()) or none)

    def _frame(self, names: list[str], rows: list[Row]) -> pd.DataFrame:
        """Rows with the types of their columns: text as it stands, numbers, NaN where empty."""
        paths = (*self.plan.axes, *self.plan.tuned)
        numbers = {n for n in names if is_number(n) or (n in paths and not self._is_text(n))}
        file = io.StringIO()
        csv.writer(file).writerows([names, *([r.get(name, "") for name in names] for r in rows)])
        return pd.read_csv(
            io.StringIO(file.getvalue()),
            dtype={name: str for name in names if name not in numbers},
            keep_default_na=False,
            na_values={name: ["", "nan"] for name in numbers},
        )

    def _is_text(self, path: str) -> bool:
        cells = (*self.plan.cells, *self.plan.waiting)
        values = (cell.config.at(path) for cell in cells)
        return any(isinstance(v, bool) or not isinstance(v, int | float) for v in values)

    def _on_file(self) -> list[Row]:
        return [*self._read(self.plan.file), *self._read("retired.csv")]

    def _read(self, name: str) -> Sequence[Row]:
        return rows_file.read(self.folder / name)

    def _write(self, name: str, rows: list[Row]) -> None:
        rows_file.write(self.folder / name, columns(self.plan, rows), rows)


def _tuning_rows(folder: Path, tuning: Plan) -> dict[str, Row]:
    """Rows on file of all that a tuning has tried, also beyond its grid."""
    rows = Results(folder, tuning).rows()
    while tuning.extend and len(found := Results(folder, grown(tuning, rows)).rows()) > len(rows):
        rows = found
    return rows
