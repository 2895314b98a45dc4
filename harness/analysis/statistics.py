"""Intervals, the frame with one row a point, and the panels that a table falls into.

What tables, claims and figures count in the same way. No matplotlib, no torch.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from harness.results.columns import OUTCOMES
from harness.results.table import Table

BOOTSTRAP_FROM = 10


def interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Mean with 95 % bounds: Student's t below ten values, bootstrap (BCa) from ten on."""
    # Sorted, so that the resamples do not depend on the order of the rows.
    sample = np.sort(np.fromiter(values, dtype=float))
    if sample.size == 0:
        return float("nan"), float("nan"), float("nan")
    mean = float(sample.mean())
    if sample.size == 1 or not np.isfinite(mean):
        return mean, float("nan"), float("nan")
    # Both methods divide by the spread; one that is mere rounding is none.
    if sample[-1] - sample[0] <= 1e-12 * abs(mean):
        return mean, mean, mean
    from scipy import stats  # slow to import, and most commands have no interval to give

    if sample.size < BOOTSTRAP_FROM:
        low, high = stats.t.interval(0.95, sample.size - 1, mean, stats.sem(sample))
    else:
        low, high = stats.bootstrap((sample,), np.mean, rng=0).confidence_interval
    return mean, float(low), float(high)


def geometric_means(values: "pd.Series[float]", by: "pd.Series[float]") -> "pd.Series[float]":
    """By key; one value that is empty leaves its key without a mean."""
    logs = values.map(math.log, na_action="ignore").groupby(by)
    return logs.agg(lambda seeds: seeds.mean(skipna=False)).map(math.exp)


def points(
    table: Table, by: Sequence[str] | None = None, metrics: Sequence[str] = ()
) -> pd.DataFrame:
    """One row a point, in order of appearance; a mean loss only where every run trained, and the
    mean of a column of `metrics`, with NAME_low and NAME_high, where every run has a value."""
    axes = [axis for axis in (*table.axes, *table.tuned) if axis != "seed"]
    axes = axes if by is None else list(by)
    # A constant key stands in for no axes; empty values are values: a decoder has no encoder.
    keys = [table.runs[axis] for axis in axes] or [pd.Series(0, index=table.runs.index)]
    rows = []
    for key, runs in table.runs.groupby(keys, sort=False, dropna=False):
        counts = [int((runs["outcome"] == outcome).sum()) for outcome in OUTCOMES]
        trained = runs["final_loss"] if counts[0] == len(runs) else ()
        means = [interval(() if runs[m].isna().any() else runs[m]) for m in metrics]
        found = itertools.chain(interval(trained), *means)
        rows.append((*key[: len(axes)], len(runs), *counts, *found))
    named = [f"{metric}{end}" for metric in metrics for end in ("", "_low", "_high")]
    head = [*axes, "n", *OUTCOMES, "final_loss", "low", "high", *named]
    return pd.DataFrame(rows, columns=head)


def edges(table: Table, rows: pd.DataFrame) -> pd.DataFrame:
    """By row and tuned path: True if the value is the smallest or the largest number that the row's
    point has tried, of at least two. All are False without the rows of a tuning."""
    axes = [axis for axis in table.axes if axis != "seed"]
    found = pd.DataFrame(False, index=rows.index, columns=list(table.tuned))
    if table.tuning is None:
        return found
    for index, row in rows.iterrows():
        tried = where(table.tuning.runs, axes, list(row[axes]))
        for path in table.tuned:
            values = tried[path].unique()
            if len(values) > 1 and pd.api.types.is_numeric_dtype(tried[path]):
                found.loc[index, path] = row[path] in (values.min(), values.max())
    return found


def at_edges(found: pd.DataFrame) -> list[str]:
    """In words, how many points have a tuned value at an edge of those tried, by `edges`."""
    count = int(found.any(axis=1).sum())
    paths = " or ".join(map(str, found))
    words = f"*: {count} of {len(found)} points have the smallest or largest {paths} that was tried"
    return [f"{words}: the best may lie beyond"] if count else []


def verdict(runs: pd.DataFrame, missing: int) -> tuple[str, str]:
    """The worst outcome of a cell, and the count of each."""
    counts = runs["outcome"].value_counts()
    lines = {outcome: f"{outcome} {counts[outcome]}" for outcome in OUTCOMES if outcome in counts}
    worst = list(lines)[-1] if lines else "missing"
    if missing and worst == "trained":
        worst = "partial"
    if "trained" in lines:
        lines["trained"] = f"{counts['trained']}/{len(runs) + missing}"
    if "diverged" in lines:
        lines["diverged"] += f"\n@ {runs['diverged_at'].median():g}"
    if missing:
        lines["missing"] = f"missing {missing}"
    return worst, "\n".join(lines.values())


def by_scheme(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each scheme, in order of appearance."""
    for scheme in dict.fromkeys(frame["scheme"]):
        yield str(scheme), frame[frame["scheme"] == scheme]


@dataclass(frozen=True)
class Panel:
    """The part of a table that shares one pair of axes; its frames have a column `depth`."""

    title: str
    table: Table
    ticks: dict[float, str]
    schemes: list[str]  # of the whole table, so that a scheme keeps its place in every panel

    @property
    def runs(self) -> pd.DataFrame:
        return self.table.runs

    @property
    def missing(self) -> pd.DataFrame:
        return self.table.missing

    def has(self, stack: str) -> bool:
        return any(frame[f"{stack}_layers"].notna().any() for frame in (self.runs, self.missing))


def panels(table: Table) -> list[Panel]:
    """One panel a combination of the axes other than scheme, depth and seed."""
    runs, missing = _with_depth(table, table.runs), _with_depth(table, table.missing)
    cells = pd.concat([frame for frame in (runs, missing) if len(frame)])
    schemes = list(dict.fromkeys(cells["scheme"]))
    others = [
        axis
        for axis in table.axes
        if axis not in ("scheme", "model.depth", "seed") and cells[axis].nunique(dropna=False) > 1
    ]
    found = []
    combinations = cells[others].drop_duplicates().itertuples(index=False, name=None)
    for values in combinations if others else [()]:
        part = replace(
            table,
            runs=where(runs, others, values),
            missing=where(missing, others, values),
        )
        named = zip(others, values, strict=True)
        title = ", ".join(f"{axis.rpartition('.')[2]} {value}" for axis, value in named)
        ticks = _ticks(where(cells, others, values))
        found.append(Panel(title, part, ticks, schemes))
    return found


def _with_depth(table: Table, frame: pd.DataFrame) -> pd.DataFrame:
    either = frame["encoder_layers"].fillna(frame["decoder_layers"])
    depth = frame["model.depth"] if "model.depth" in table.axes else either
    return frame.assign(depth=depth.astype(float))


def where(frame: pd.DataFrame, axes: Sequence[str], values: Sequence[object]) -> pd.DataFrame:
    """The rows that have these values; an empty value is a value."""
    same = pd.Series(True, index=frame.index)
    for axis, value in zip(axes, values, strict=True):
        same &= frame[axis].isna() if value != value else frame[axis] == value
    return frame[same]


def _ticks(cells: pd.DataFrame) -> dict[float, str]:
    ticks = {}
    for depth in sorted(cells["depth"].unique()):
        rows = cells[cells["depth"] == depth]
        pairs = rows[["encoder_layers", "decoder_layers"]].dropna().drop_duplicates().to_numpy()
        layers = pairs[0] if len(pairs) == 1 else [depth]
        ticks[float(depth)] = "-".join(f"{count:g}" for count in layers)
    return ticks
