"""Figures of a tuning: loss, and idle blocks, by rate."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis import drawings
from harness.analysis.figures.plot import figure
from harness.analysis.statistics import edges, verdict, where
from harness.errors import ConfigError, MissingRuns
from harness.results.table import Table

IDLE = {  # columns, the older one first
    "metric_idle_blocks": ("share of idle blocks", "{:.2f}"),
    "metric_idle_cost": ("idle cost (nats)", "{:.3f}"),
}


def _tuning(table: Table, name: str) -> tuple[Table, str]:
    """The tuning and the path that it chose; an error of one line if the figure cannot draw it."""
    trials = table.tuning
    if trials is None:
        what = f"{table.study}: figure {name!r} has no tuning to draw"
        raise MissingRuns(f"{what}; declare `tune` in the study")
    if len(trials.tuned) != 1:
        raise ConfigError(f"{table.study}: figure {name!r} draws one tuned path, not more")
    (path,) = trials.tuned
    if not pd.api.types.is_numeric_dtype(trials.runs[path]):
        raise ConfigError(f"{table.study}: figure {name!r} draws numbers, {path} has none")
    return trials, path


def _combinations(cells: pd.DataFrame, others: Sequence[str]) -> list[tuple[object, ...]]:
    """The values of these axes that occur together: one empty combination without axes."""
    if not others:
        return [()]  # a frame without columns has no row
    return list(cells[list(others)].drop_duplicates().itertuples(index=False, name=None))


@figure(tuning=True)
def rate_depth(table: Table) -> Figure:
    """Mean loss of the tuning by rate and depth, a panel a scheme: what was chosen, and the largest
    rate at which every seed trained."""
    trials, path = _tuning(table, "rate_depth")
    cells = pd.concat([trials.runs, trials.missing])
    others = [axis for axis in trials.axes if axis not in ("scheme", "seed")]
    rows = _combinations(cells, others)
    rates = sorted(cells[path].dropna().unique())
    schemes = list(dict.fromkeys(cells["scheme"]))
    seeds = cells["seed"].nunique()
    small = (
        f"{table.study}, tuning: n = {seeds} seeds a tile; number: mean validation loss where all "
        "trained\nframed: chosen, dashed at an edge of the rates tried for its point; bar on the "
        "right: largest rate at which all seeds trained"
    )
    sheet, axes = drawings.page(
        "Validation loss by learning rate (nats per token)",
        small,
        panels=len(schemes),
        columns=min(2 if len(schemes) <= 6 else 3, len(schemes)),
        panel_height=0.3 * len(rows) + 0.6,
    )
    for ax, scheme in zip(axes, schemes, strict=True):
        for row, values in enumerate(rows):
            if where(cells, ["scheme", *others], (scheme, *values)).empty:
                continue  # not planned
            tried, planned, ran = (
                where(frame, ["scheme", *others], (scheme, *values))
                for frame in (trials.runs, cells, table.runs)
            )
            found = {rate: tried[tried[path] == rate] for rate in planned[path].dropna().unique()}
            _draw_row(ax, row, [found.get(rate) for rate in rates], seeds)
            _frame_chosen(ax, row, table, ran, rates)
        names = [", ".join(map(str, values)) for values in rows]
        drawings.chart(ax, [f"{rate:g}" for rate in rates], names)
        ax.set_title(scheme)
        ax.set_xlabel(path)
    sheet.supylabel(", ".join(others), fontsize=8)
    return sheet


def _frame_chosen(ax: Axes, row: int, table: Table, runs: pd.DataFrame, rates: list[float]) -> None:
    """A frame about each rate that these runs have, dashed at an edge of those tried."""
    (path,) = table.tuned
    chosen = runs.drop_duplicates(path)
    for rate, dashed in zip(chosen[path], edges(table, chosen)[path], strict=True):
        drawings.frame(ax, rates.index(rate), row, dashed=dashed)


def _draw_row(ax: Axes, row: int, tried: list[pd.DataFrame | None], seeds: int) -> None:
    """A tile per rate: its mean loss, or what became of its runs; none for a rate that other points
    have tried beyond the grid."""
    largest = None
    for column, runs in enumerate(tried):
        if runs is None:
            continue
        kind, text = verdict(runs, seeds - len(runs))
        if kind == "trained":
            largest, text = column, f"{runs['final_loss'].mean():.3f}"
        drawings.tile(ax, column, row, kind, _without_step(text))
    if largest is not None:
        drawings.stop(ax, largest, row)


@figure(tuning=True)
def idle_blocks(table: Table) -> Figure:
    """Share of idle blocks and, if it was measured, the cost of removing all of them at once, by
    scheme and rate: a column of tiles compares schemes at an equal rate.

    One panel per combination of the other axes; means over the tuning's seeds.
    """
    trials, path = _tuning(table, "idle_blocks")
    if "metric_idle_blocks" not in trials.runs:
        raise ConfigError(
            f"{table.study}: figure 'idle_blocks' needs the column 'metric_idle_blocks' in the "
            "tuning's rows; set probe.skip_blocks = true"
        )
    cells = pd.concat([trials.runs, trials.missing])
    others = [axis for axis in trials.axes if axis not in ("scheme", "seed")]
    others = [axis for axis in others if cells[axis].nunique(dropna=False) > 1]
    rates = sorted(cells[path].dropna().unique())
    schemes = list(dict.fromkeys(cells["scheme"]))
    seeds = cells["seed"].nunique()
    combinations = _combinations(cells, others)
    quantities = [column for column in IDLE if column in trials.runs]
    parts = [(column, values) for column in quantities for values in combinations]
    small = (
        f"{table.study}, tuning: n = {seeds} seeds per tile; number: mean if all have a value\n"
        "idle: removal alone costs under 0.01 nats; idle cost: removal of all idle blocks at once\n"
        "framed: chosen, dashed at an edge of the rates tried; hatched: not all trained"
    )
    sheet, axes = drawings.page(
        "Idle blocks by learning rate",
        small,
        panels=len(parts),
        columns=len(combinations),
        panel_height=0.26 * len(schemes) + 0.75,
    )
    for ax, (column, values) in zip(axes, parts, strict=True):
        title, number = IDLE[column]
        for row, scheme in enumerate(schemes):
            of = (["scheme", *others], (scheme, *values))
            tried, planned = where(trials.runs, *of), where(cells, *of)[path].unique()
            for i, rate in enumerate(rates):
                if rate not in planned:
                    continue
                runs = tried[tried[path] == rate]
                kind, text = verdict(runs, seeds - len(runs))
                if len(runs) == seeds and runs[column].notna().all():
                    text = number.format(runs[column].mean())
                drawings.tile(ax, i, row, kind, _without_step(text))
            _frame_chosen(ax, row, table, where(table.runs, *of), rates)
        drawings.chart(ax, [f"{rate:g}" for rate in rates], schemes)
        named = [f"{axis.rpartition('.')[2]} {x}" for axis, x in zip(others, values, strict=True)]
        ax.set_title("\n".join(filter(None, [title, ", ".join(named)])))
        ax.set_xlabel(path)
    return sheet


def _without_step(text: str) -> str:
    """A verdict without the step of a divergence, for which a tile is too narrow."""
    return "\n".join(line for line in text.split("\n") if not line.startswith("@"))
