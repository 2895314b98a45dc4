"""results/<study>/: one row a run in runs.csv, thinned curves beside it, and both as frames.

Rows are text from the moment they are formatted, so that the same rows are the same bytes.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from harness.analysis.files import CurvesFile, replace
from harness.errors import ConfigError, MissingRuns
from harness.fields import Typed, number
from harness.sweep.plan import Cell, Plan, resolved, spelling
from harness.training.curves import Curves

Row = dict[str, str]

STACKS = ("encoder", "decoder")
IDENTITY = (
    *("study", "run_id", "scheme", "scheme_options", "family"),
    *("encoder_layers", "decoder_layers", "seed"),
)
LOSSES = (
    *("outcome", "reason", "diverged_at"),
    *("final_loss", "best_loss", "baseline_loss", "reference_loss"),
)
GRADIENTS = tuple(
    pattern.format(stack)
    for pattern in (
        "grad_norm_first_{}_init",
        "grad_norm_first_{}",
        "grad_norm_first_{}_matrices",
        "grad_norm_ratio_{}",
        "grad_ratio_stream_{}",
    )
    for stack in STACKS
)
DRAWN = (  # of runs that take no step
    *(f"grad_norm_last_{stack}{end}" for stack in STACKS for end in ("", "_matrices", "_down")),
    "branch_variance_cross",
)
COST = ("steps", "tokens", "parameters", "flops", "seconds", "peak_memory_mb")
PROVENANCE = (
    *("attempts", "spikes", "skipped_steps", "data_sha", "protocol", "commit", "torch"),
    *("device", "precision", "threads", "finished"),
)
TEXT = {
    *("study", "run_id", "scheme", "scheme_options", "family", "outcome", "reason", "data_sha"),
    *("commit", "torch", "device", "precision", "finished", "bleu_signature"),
}
OUTCOMES = ("trained", "stalled", "diverged", "crashed")  # each worse than the one before
FILES = ("runs.csv", "tuning.csv", "retired.csv")
REQUIRED = {"run_id", "outcome", "data_sha"}


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


class Results:
    """The folder of one plan's results; `plan` is resolved by the tuning on file, or by the rows
    of tuning that are given."""

    def __init__(self, folder: Path, plan: Plan, trials: Mapping[str, Row] | None = None) -> None:
        self.tuning = Results(folder, plan.tuning) if plan.tuning else None
        if self.tuning:
            plan = resolved(plan, self.tuning.rows() if trials is None else trials)
        self.folder, self.plan = folder / plan.name, plan
        self.curves = CurvesFile(self.folder / "curves.csv.gz")

    def lock(self) -> FileLock:
        """To be held while results are read, merged and written: commands may share a study."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / ".lock")

    def rows(self, shas: Mapping[str, str] | None = None) -> dict[str, Row]:
        """Rows of the plan's cells by run_id, returned from retirement where need be.

        With `shas`, the hash of each cell's corpus at hand, only rows of these corpora.
        """
        found: dict[str, Row] = {}
        for r in [*self._read(self.plan.file), *self._read("retired.csv")]:
            key, cell = r["run_id"], self.plan.by_key.get(r["run_id"])
            fits = not shas or r["outcome"] == "crashed" or r["data_sha"] == shas.get(key)
            if cell and fits and key not in found:
                # The plan knows what a cell is called now, even if another plan wrote the row.
                found[key] = {**r, **_planned(self.plan, cell)}
        return found

    def retired(self) -> int:
        """How many rows on file no cell of the present plan has."""
        on_file = {r["run_id"] for name in FILES for r in self._read(name)}
        tuning = self.tuning.plan.by_key.keys() if self.tuning else set()
        return len(on_file - self.plan.by_key.keys() - tuning)

    def write(self, rows: Mapping[str, Row]) -> None:
        """Makes the plan's file its rows in its order, `rows` before what is on file.

        What is no longer of the plan, or was measured on another corpus, moves to retired.csv. A
        row is in one of the two files at every moment.
        """
        runs, old = self._read(self.plan.file), self._read("retired.csv")
        kept = {**self.rows(), **rows}
        present = {(r["run_id"], r["data_sha"]) for r in kept.values()}
        retired = {(r["run_id"], r["data_sha"]): r for r in [*old, *runs]}
        gone = {
            (run, sha): r
            for (run, sha), r in retired.items()
            if (run, sha) not in present and not (r["outcome"] == "crashed" and run in kept)
        }
        ordered = [kept[cell.key] for cell in self.plan.cells if cell.key in kept]
        if not kept and not runs and not gone:
            return
        self.curves.drop(
            r["run_id"]
            for r in runs
            if r["run_id"] in rows and measured(r) != measured(rows[r["run_id"]])
        )
        if gone or old:
            self._write(
                "retired.csv", [*gone.values(), *(r for r in old if r not in gone.values())]
            )
        self._write(self.plan.file, ordered)
        if gone or old:
            self._write("retired.csv", [gone[key] for key in sorted(gone)])

    def write_curves(self, curves: Mapping[str, Curves]) -> None:
        """Adds curves by run_id to those at hand, in the plan's order."""
        self.curves.write(curves, [cell.key for cell in self.plan.cells])

    def table(self) -> Table:
        """What has been measured, as frames; MissingRuns when there is nothing at all."""
        rows = self.rows()
        if not rows:
            raise MissingRuns(f"{self.folder}: no runs yet; make them with '{self.plan.command}'")
        kept = [rows[cell.key] for cell in self.plan.cells if cell.key in rows]
        absent = [cell for cell in self.plan.cells if cell.key not in rows]
        missing = [_planned(self.plan, cell) for cell in (*absent, *self.plan.waiting)]
        columns = _columns(self.plan, kept)
        runs, lacking = (self._frame(columns, part) for part in (kept, missing))
        head = _head(self.plan.axes)
        return Table(
            self.plan.name,
            self.plan.axes,
            runs,
            self.curves.frame(),
            lacking[head],
            self.plan.tuned,
            self.tuning.table() if self.tuning else None,
        )

    def _frame(self, columns: list[str], rows: list[Row]) -> pd.DataFrame:
        """Rows with the types of their columns: text as it stands, numbers, NaN where empty."""
        paths = (*self.plan.axes, *self.plan.tuned)
        text = TEXT | {path for path in paths if self._is_text(path)}
        file = io.StringIO()
        csv.writer(file).writerows(
            [columns, *([r.get(name, "") for name in columns] for r in rows)]
        )
        frame = pd.read_csv(
            io.StringIO(file.getvalue()),
            dtype=dict.fromkeys(text & set(columns), str),
            keep_default_na=False,
            na_values={name: ["", "nan"] for name in columns if name not in text},
        )
        for name in columns:
            if rows and name not in text and not pd.api.types.is_numeric_dtype(frame[name]):
                path = self.folder / "runs.csv"
                raise ConfigError(f"{path}: {name}: not a number in every row; restore the file")
        return frame

    def _is_text(self, path: str) -> bool:
        cells = (*self.plan.cells, *self.plan.waiting)
        values = (cell.config.at(path) for cell in cells)
        return any(isinstance(v, bool) or not isinstance(v, int | float) for v in values)

    def _read(self, name: str) -> list[Row]:
        return _read(self.folder / name)

    def _write(self, name: str, rows: list[Row]) -> None:
        replace(self.folder / name, _csv(rows, self.plan))


def row(plan: Plan, cell: Cell, record: Mapping[str, Any]) -> Row:
    """A run as text: config values by repr, measurements with six significant digits."""
    left_out = ("error",) if plan.file == "tuning.csv" else ("error", "last_loss")
    values = {name: _spelled(value) for name, value in record.items() if name not in left_out}
    return {**_planned(plan, cell), "data_sha": "", **values}


def measured(r: Row) -> Row:
    """A row without cost and provenance: what two runs of one cell must agree in."""
    return {k: v for k, v in r.items() if v and k not in (*COST, *PROVENANCE, "bleu_signature")}


def differences(one: Row, other: Row) -> dict[str, tuple[str, str]]:
    """Columns in which two rows of a run differ, cost and provenance aside, with both values."""
    a, b = measured(one), measured(other)
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return {name: (a.get(name, "empty"), b.get(name, "empty")) for name in names}


def _planned(plan: Plan, cell: Cell) -> Row:
    """What a row says of its cell; of one whose tuned values are not chosen neither these nor a
    run."""
    config = cell.config
    layers = (config.model.encoders, config.model.decoders)
    known = cell.key in plan.by_key
    return {
        "study": plan.name,
        "run_id": cell.key if known else "",
        "scheme": config.scheme,
        "scheme_options": config.canonical_options,
        "family": config.model.family,
        **{f"{s}_layers": str(n) if n else "" for s, n in zip(STACKS, layers, strict=True)},
        "seed": str(config.seed),
        **{axis: spelling(value) for axis, value in zip(plan.axes, cell.values, strict=True)},
        **{path: spelling(config.at(path)) if known else "" for path in plan.tuned},
        "tuned_over": str(plan.tried),
    }


def _spelled(value: Any) -> str:
    if value is None:
        return ""
    return "%.6g" % value if isinstance(value, float) else str(value)


def _head(axes: Sequence[str]) -> list[str]:
    return [*IDENTITY, *(axis for axis in axes if axis not in IDENTITY)]


def _columns(plan: Plan, rows: Iterable[Row]) -> list[str]:
    """The contract's columns, those of models as drawn where a row has them, and behind them
    sacrebleu's signature and whatever else the rows of other plans have."""
    # Not those that are empty throughout: rows back from retirement have the columns of others.
    names = dict.fromkeys(name for r in rows for name, value in r.items() if value)
    metrics = sorted(name for name in names if name.startswith("metric_"))
    drawn = [name for name in DRAWN if name in names]
    columns = [
        *(*_head(plan.axes), *plan.tuned, "tuned_over", *LOSSES, *metrics),
        *(*GRADIENTS, *drawn, "update_norm", *COST, *PROVENANCE),
    ]
    return columns + sorted(names.keys() - set(columns))


def _csv(rows: list[Row], plan: Plan) -> bytes:
    file = io.StringIO()
    columns = _columns(plan, rows)  # what they leave out is empty
    writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    try:
        reader = csv.DictReader(io.StringIO(path.read_bytes().decode(), newline=""), strict=True)
        columns, rows = set(reader.fieldnames or ()), list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not readable as CSV: {error}; restore the file") from None
    if not columns >= REQUIRED:
        raise ConfigError(f"{path}: line 1: not the columns of runs; restore the file")
    seen: set[tuple[str, str]] = set()
    for line, r in enumerate(rows, start=2):
        key = r["run_id"], r["data_sha"]
        if None in r or None in r.values() or not r["run_id"]:
            raise ConfigError(f"{path}: line {line}: not a whole row; restore the file")
        if r["outcome"] not in OUTCOMES:
            raise ConfigError(
                f"{path}: line {line}: outcome: unknown value {r['outcome']!r}; restore the file"
            )
        for name in COST:
            if r.get(name) and number(Typed(r[name])) is None:
                where = f"{path}: line {line}: {name}"
                raise ConfigError(f"{where}: expected a number, got {r[name]!r}; restore the file")
        if key in seen:
            raise ConfigError(f"{path}: line {line}: run {key[0]} stands twice; restore the file")
        seen.add(key)
    return rows
