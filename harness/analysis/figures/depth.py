"""Figures of what becomes of a study's runs with depth."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis import drawings, looks
from harness.analysis.figures.plot import (
    caption,
    edge_note,
    figure,
    join,
    lost,
    mark_edges,
    mark_runs,
    means,
    means_note,
    strips,
)
from harness.analysis.statistics import by_scheme, geometric_means, panels, verdict
from harness.results.columns import STACKS
from harness.results.table import Table


def _named(table: Table, axes: list[Axes], columns: int) -> list[bool]:
    """Which panels name their levels: the last of a row speaks for all if all are equal."""
    differ = table.runs[["baseline_loss", "reference_loss"]].round(2).nunique().max() > 1
    return [differ or i % columns == 0 or i == len(axes) for i in range(1, len(axes) + 1)]


def levels(ax: Axes, runs: pd.DataFrame, *, named: bool) -> None:
    """What a model that reads nothing, and one that reads one token, would reach."""
    heights = {"baseline": runs["baseline_loss"].mean(), "bigram": runs["reference_loss"].mean()}
    for name, value in heights.items():
        if math.isfinite(value):
            text = f"{name}\n{value:.2f}" if named else ""
            drawings.level(ax, value, text, above=value == max(heights.values()))


@figure(needs=("baseline_loss", "reference_loss"), tuning=True)
def depth_curve(table: Table) -> Figure:
    """Validation loss against depth: every seed, the mean while all train, its interval."""
    parts = panels(table)
    columns = min(3, len(parts))
    small = caption(table, means_note(table), "hollow: stalled", *edge_note(table))
    title = "Validation loss against depth"
    sheet, axes = drawings.page(title, small, panels=len(parts), columns=columns)
    unplaced = []
    for ax, panel, named in zip(axes, parts, _named(table, axes, columns), strict=True):
        drawings.depth_axis(ax, panel.ticks)
        mark_runs(ax, panel, panel.runs, "final_loss")
        levels(ax, panel.runs, named=named)
        means(ax, panel, "final_loss")
        mark_edges(ax, panel, "final_loss")
        unplaced.append(lost(panel, "final_loss"))
    for top, panel in zip(strips(axes, parts, unplaced), parts, strict=True):
        top.set_title(panel.title)
    sheet.supylabel("validation loss (nats per token)", fontsize=8)
    drawings.legend(sheet, parts[0].schemes)
    return sheet


@figure(needs=("diverged_at",))
def outcome_map(table: Table) -> Figure:
    """What became of the runs of every scheme at every depth, cell by cell."""
    parts = panels(table)
    schemes = parts[0].schemes
    sheet, axes = drawings.page(
        "Outcome by scheme and depth",
        caption(table, "a/b: a of b planned seeds trained", "@: median step of divergence"),
        panels=len(parts),
        columns=min(2, len(parts)),
        panel_height=0.44 * len(schemes) + 0.5,
    )
    for ax, panel in zip(axes, parts, strict=True):
        for row, scheme in enumerate(schemes):
            for column, depth in enumerate(panel.ticks):
                runs, missing = (
                    frame[(frame["scheme"] == scheme) & (frame["depth"] == depth)]
                    for frame in (panel.runs, panel.missing)
                )
                if len(runs) + len(missing):
                    drawings.tile(ax, column, row, *verdict(runs, len(missing)))
        drawings.chart(ax, list(panel.ticks.values()), schemes)
        ax.set_title(panel.title)
        ax.set_xlabel(drawings.depth_label(panel.ticks))
    return sheet


@figure(needs=tuple(f"grad_norm_first_{stack}{end}" for stack in STACKS for end in ("", "_init")))
def gradient_depth(table: Table) -> Figure:
    """Gradient norm of each stack's first block against depth: over the window, and at step 0."""
    parts = [
        (end, stack, panel)
        for end in ("", "_init")
        for panel in panels(table)
        for stack in STACKS
        if panel.has(stack)
    ]
    small = caption(table, "line: geometric mean", "hollow: stalled, diverged or crashed")
    title = "Gradient of the first block against depth"
    sheet, axes = drawings.page(title, small, panels=len(parts), columns=len(parts) // 2)
    unplaced = []
    for ax, (end, stack, panel) in zip(axes, parts, strict=True):
        drawings.depth_axis(ax, panel.ticks)
        ax.set_yscale("log")
        column = f"grad_norm_first_{stack}{end}"
        runs = panel.runs[panel.runs[f"{stack}_layers"].notna()]
        names = runs[column].map(drawings.heightless)
        mark_runs(ax, panel, runs[names == ""], column)
        for scheme, rows in by_scheme(runs):
            heights = rows[column].where(names == "")
            join(ax, panel, scheme, geometric_means(heights, rows["depth"]))
        unplaced.append(runs.assign(name=names)[names != ""])
        when = "at step 0" if end else "window median"
        ax.set_title(", ".join(filter(None, (stack, when, panel.title))))
    strips(axes, [panel for *_, panel in parts], unplaced, below=True)
    sheet.supylabel("gradient norm of the first block (L2)", fontsize=8)
    drawings.legend(sheet, parts[0][-1].schemes)
    return sheet


@figure(needs=("run_id", "baseline_loss", "reference_loss", "diverged_at"), curves=True)
def loss_traces(table: Table) -> Figure:
    """Training loss against step, a panel a depth: one thin line a run."""
    parts = [(panel, depth) for panel in panels(table) for depth in panel.ticks]
    losses = table.curves[table.curves["series"] == "loss/train"]
    traces = {run: rows.set_index("step")["value"] for run, rows in losses.groupby("run_id")}
    blank = len(set(table.runs["run_id"]) - set(traces))
    notes = ["hollow: diverged there", *([f"{blank} runs without a curve"] if blank else [])]
    columns = 2 if len(parts) == 4 else min(3, len(parts))
    small = caption(table, "one line a run", *notes)
    sheet, axes = drawings.page("Training loss", small, panels=len(parts), columns=columns)
    starts = np.array([table.runs["baseline_loss"].max(), *(c.iloc[0] for c in traces.values())])
    ceiling = float(starts[np.isfinite(starts)].max())
    for ax, (panel, depth), named in zip(axes, parts, _named(table, axes, columns), strict=True):
        runs = panel.runs[panel.runs["depth"] == depth]
        drawn = runs.loc[runs["run_id"].isin(list(traces)), ["run_id", "scheme", "diverged_at"]]
        for run_id, scheme, diverged_at in drawn.itertuples(index=False, name=None):
            seen, curve = looks.look(str(scheme)), traces[run_id]
            ax.plot(curve.index, curve, **seen.line, linewidth=0.9)
            if diverged_at == diverged_at:
                before = curve[(curve.index <= diverged_at) & np.isfinite(curve)]
                height = min([ceiling, *before.iloc[-1:]])
                ax.plot([diverged_at], [height], **seen.point(filled=False, size=7), zorder=3)
        levels(ax, runs, named=named)
        ax.set_ylim(top=1.05 * ceiling)
        ax.set_title(", ".join(filter(None, (f"{panel.ticks[depth]} layers", panel.title))))
        ax.set_xlabel("step")
    sheet.supylabel("training loss (nats per token)", fontsize=8)
    drawings.legend(sheet, table.runs["scheme"].unique())
    return sheet
