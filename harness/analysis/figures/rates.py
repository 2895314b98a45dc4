"""The figure of a tuning: loss by rate and depth."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis import drawings
from harness.analysis.figures.plot import figure
from harness.analysis.statistics import edges, verdict, where
from harness.errors import ConfigError, MissingRuns
from harness.results.table import Table


@figure(tuning=True)
def rate_depth(table: Table) -> Figure:
    """Mean loss of the tuning by rate and depth, a panel a scheme: what was chosen, and the largest
    rate at which every seed trained."""
    trials = table.tuning
    if trials is None:
        what = f"{table.study}: figure 'rate_depth' has no tuning to draw"
        raise MissingRuns(f"{what}; declare `tune` in the study")
    if len(trials.tuned) != 1:
        raise ConfigError(f"{table.study}: figure 'rate_depth' draws one tuned path, not more")
    (path,) = trials.tuned
    if not pd.api.types.is_numeric_dtype(trials.runs[path]):
        raise ConfigError(f"{table.study}: figure 'rate_depth' draws numbers, {path} has none")
    cells = pd.concat([trials.runs, trials.missing])
    others = [axis for axis in trials.axes if axis not in ("scheme", "seed")]
    # Without other axes there is one row, which a frame without columns does not have.
    combinations = cells[others].drop_duplicates().itertuples(index=False, name=None)
    rows = list(combinations) if others else [()]
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
            chosen = ran.drop_duplicates(path)
            at_edge = edges(table, chosen)[path]
            for rate, dashed in zip(chosen[path], at_edge, strict=True):
                drawings.frame(ax, rates.index(rate), row, dashed=dashed)
        names = [", ".join(map(str, values)) for values in rows]
        drawings.chart(ax, [f"{rate:g}" for rate in rates], names)
        ax.set_title(scheme)
        ax.set_xlabel(path)
    sheet.supylabel(", ".join(others), fontsize=8)
    return sheet


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
        # A tile is too narrow for the step of a divergence beside its count.
        lines = [line for line in text.split("\n") if not line.startswith("@")]
        drawings.tile(ax, column, row, kind, "\n".join(lines))
    if largest is not None:
        drawings.stop(ax, largest, row)
