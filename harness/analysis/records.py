"""results/<study>/: one row a run in runs.csv, thinned curves beside it, and both as frames.

Rows are text from the moment they are formatted, so that the same rows are the same bytes.
"""

import csv
import gzip
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

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
CURVES_BYTES, CURVES_STEPS = (
    2**20,
    100,
)  # below 1 MiB a study; steps after the first 51, to begin with


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
            key, sha = r["run_id"], r["data_sha"]
            fits = not shas or r["outcome"] == "crashed" or sha == shas.get(key)
            if key in self.plan.by_key and fits:
                found.setdefault(key, r)
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

    def write_curves(self, curves: Mapping[str, Curves]) -> None:
        """Adds curves by run_id to those at hand, steps spaced so that the file is below 1 MiB."""
        path = self.folder / "curves.csv.gz"
        at_hand = _read_curves(path)
        for spaced in (CURVES_STEPS, 50, 25, 10, 0):
            content = _pack(self.plan, curves, at_hand, spaced)
            if len(content) < CURVES_BYTES:
                break
        replace(path, content)

    def runs_with_curves(self) -> set[str]:
        return set(_read_curves(self.folder / "curves.csv.gz"))

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
        curves = pd.read_csv(
            io.StringIO(_csv_of_curves(_read_curves(self.folder / "curves.csv.gz")))
        )
        return Table(self.plan.name, self.plan.axes, runs, curves, frame)

    def _is_text(self, axis: str) -> bool:
        place = self.plan.axes.index(axis)
        return any(not isinstance(c.values[place], int | float) for c in self.plan.cells)


def row(plan: Plan, cell: Cell, record: Mapping[str, Any]) -> Row:
    """A run as text: config values by repr, measurements with six significant digits."""
    measured = {name: _measured(value) for name, value in record.items() if name != "tracked"}
    identity = {**_identity(plan, cell), **_axis_values(plan, cell)}
    return {**identity, "tuned_over": "0", "data_sha": "", **measured}


def replace(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, and never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_bytes() == content:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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


CurveRows = dict[str, list[tuple[str, str, str, str]]]  # by run_id: step, series, block, value


def _read_curves(path: Path) -> CurveRows:
    curves: CurveRows = {}
    if not path.exists():
        return curves
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            for run, step, series, block, value in list(csv.reader(file))[1:]:
                curves.setdefault(run, []).append((step, series, block, value))
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(f"{path}: not readable: {error}; remove it and run again") from None
    return curves


def _pack(plan: Plan, curves: Mapping[str, Curves], at_hand: CurveRows, spaced: int) -> bytes:
    packed: CurveRows = {}
    for cell in plan.cells:
        if cell.key in curves:
            packed[cell.key] = [
                (str(step), series, "" if block is None else str(block), "%.4g" % value)
                for step, series, block, value in curves[cell.key].thinned(spaced)
                if not math.isnan(value)
            ]
        elif cell.key in at_hand:
            packed[cell.key] = at_hand[cell.key]
    packed |= {key: rows for key, rows in at_hand.items() if key not in packed}  # retired
    return gzip.compress(_csv_of_curves(packed).encode(), mtime=0)


def _csv_of_curves(curves: CurveRows) -> str:
    lines = ["run_id,step,series,block,value"]
    lines += [",".join((run, *values)) for run, rows in curves.items() for values in rows]
    return "\n".join(lines) + "\n"
