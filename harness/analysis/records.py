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

from harness.analysis.files import CurvesFile, replace
from harness.errors import ConfigError, MissingRuns
from harness.sweep.study import Cell, Plan, spelling
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
COST = ("steps", "tokens", "parameters", "flops", "seconds", "peak_memory_mb")
PROVENANCE = (
    *("attempts", "spikes", "skipped_steps", "data_sha", "protocol", "commit", "torch"),
    *("device", "precision", "threads", "finished"),
)
TEXT = {
    "study",
    "run_id",
    "scheme",
    "scheme_options",
    "family",
    "outcome",
    "reason",
    "data_sha",
} | {
    "commit",
    "torch",
    "device",
    "precision",
    "finished",
}
REQUIRED = {"run_id", "outcome", "data_sha"}


@dataclass(frozen=True)
class Table:
    """A study's evidence: runs as rows, thinned curves, and the planned cells that have no run."""

    study: str
    axes: tuple[str, ...]
    runs: pd.DataFrame
    curves: pd.DataFrame  # run_id, step, series, block, value
    missing: pd.DataFrame


class Results:
    """The folder of one plan's results."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder / plan.name, plan

    def rows(self, shas: Mapping[str, str] | None = None) -> dict[str, Row]:
        """Rows of the plan's cells by run_id, returned from retirement where need be.

        With `shas`, the hash of each cell's corpus at hand, only rows of these corpora.
        """
        found: dict[str, Row] = {}
        for r in self._on_file():
            key, cell = r["run_id"], self.plan.by_key.get(r["run_id"])
            fits = not shas or r["outcome"] == "crashed" or r["data_sha"] == shas.get(key)
            if cell and fits and key not in found:
                # The plan knows what a cell is called now, even if another plan wrote the row.
                found[key] = {**r, **_identity(self.plan, cell), **_axis_values(self.plan, cell)}
        return found

    def retired(self) -> list[Row]:
        """Rows that no cell of the present plan has."""
        return [r for r in self._on_file() if r["run_id"] not in self.plan.by_key]

    def write(self, rows: Mapping[str, Row]) -> None:
        """Makes runs.csv the plan's rows in the plan's order, `rows` before what is on file.

        What is no longer of the plan, or was measured on another corpus, moves to retired.csv.
        """
        kept = {**self.rows(), **rows}
        present = {(r["run_id"], r["data_sha"]) for r in kept.values()}
        retired = {
            (r["run_id"], r["data_sha"]): r
            for r in self._on_file()
            if (r["run_id"], r["data_sha"]) not in present
            and not (r["outcome"] == "crashed" and r["run_id"] in kept)
        }
        folder, axes = self.folder, self.plan.axes
        if kept or (folder / "runs.csv").exists():
            ordered = [kept[cell.key] for cell in self.plan.cells if cell.key in kept]
            replace(folder / "runs.csv", _csv(ordered, axes))
        if retired or (folder / "retired.csv").exists():
            replace(folder / "retired.csv", _csv([retired[k] for k in sorted(retired)], axes))

    def _on_file(self) -> list[Row]:
        return [*_read(self.folder / "runs.csv"), *_read(self.folder / "retired.csv")]

    @property
    def curves(self) -> CurvesFile:
        return CurvesFile(self.folder / "curves.csv.gz")

    def write_curves(self, curves: Mapping[str, Curves]) -> None:
        """Adds curves by run_id to those at hand, in the plan's order."""
        self.curves.write(curves, [cell.key for cell in self.plan.cells])

    def table(self) -> Table:
        """What has been measured, as frames; MissingRuns when there is nothing at all."""
        rows = self.rows()
        if not rows:
            raise MissingRuns(
                f"{self.folder}: no runs yet; make them with 'harness run {self.plan.name}'"
            )
        kept = [rows[cell.key] for cell in self.plan.cells if cell.key in rows]
        text = TEXT | {axis for axis in self.plan.axes if self._is_text(axis)}
        runs = pd.read_csv(
            io.StringIO(_csv(kept, self.plan.axes).decode()),
            dtype=dict.fromkeys(text, str),
        )
        runs["reason"] = runs["reason"].fillna("")
        missing = [
            {**_identity(self.plan, cell), **_axis_values(self.plan, cell)}
            for cell in self.plan.cells
            if cell.key not in rows
        ]
        frame = pd.DataFrame(missing, columns=_head(self.plan.axes))
        for name in frame.columns.difference(list(text)):
            frame[name] = pd.to_numeric(frame[name], errors="coerce")
        return Table(self.plan.name, self.plan.axes, runs, self.curves.frame(), frame)

    def _is_text(self, axis: str) -> bool:
        place = self.plan.axes.index(axis)
        return any(not isinstance(c.values[place], int | float) for c in self.plan.cells)


def row(plan: Plan, cell: Cell, record: Mapping[str, Any]) -> Row:
    """A run as text: config values by repr, measurements with six significant digits."""
    measured = {name: _measured(value) for name, value in record.items() if name != "tracked"}
    identity = {**_identity(plan, cell), **_axis_values(plan, cell)}
    return {**identity, "tuned_over": "0", "data_sha": "", **measured}


def differences(one: Row, other: Row) -> dict[str, tuple[str, str]]:
    """Columns in which two rows of a run differ, cost and provenance aside, with both values."""
    names = [name for name in {**one, **other} if name not in (*COST, *PROVENANCE)]
    pairs = {name: (one.get(name, ""), other.get(name, "")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _identity(plan: Plan, cell: Cell) -> Row:
    config = cell.config
    layers = (config.model.encoders, config.model.decoders)
    return {
        "study": plan.name,
        "run_id": cell.key,
        "scheme": config.scheme,
        "scheme_options": config.canonical_options,
        "family": config.model.family,
        **{f"{s}_layers": str(n) if n else "" for s, n in zip(STACKS, layers, strict=True)},
        "seed": str(config.seed),
    }


def _axis_values(plan: Plan, cell: Cell) -> Row:
    return {axis: spelling(value) for axis, value in zip(plan.axes, cell.values, strict=True)}


def _measured(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return "%.6g" % value
    return str(value)


def _head(axes: Sequence[str]) -> list[str]:
    return [*IDENTITY, *(axis for axis in axes if axis not in IDENTITY)]


def _columns(axes: Sequence[str], rows: Iterable[Row]) -> list[str]:
    metrics = sorted({name for r in rows for name in r if name.startswith("metric_")})
    return [
        *_head(axes),
        *("tuned_over", *LOSSES, *metrics, *GRADIENTS, "update_norm", *COST, *PROVENANCE),
    ]


def _csv(rows: list[Row], axes: Sequence[str]) -> bytes:
    file = io.StringIO()
    writer = csv.DictWriter(
        file, _columns(axes, rows), restval="", lineterminator="\n", extrasaction="ignore"
    )
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not readable as CSV: {error}; restore the file") from None
    for number, found in enumerate(rows, start=2):
        if (
            None in found
            or None in found.values()
            or "run_id" not in found
            or "outcome" not in found
        ):
            raise ConfigError(f"{path}: line {number}: not a whole row of runs; restore the file")
    return rows
