"""The figure of one depth: schemes side by side."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis import drawings, looks
from harness.analysis.figures.plot import at_edge, caption, edge_note, figure
from harness.analysis.statistics import Panel, interval, panels, where
from harness.results.table import Table

IDLE = "metric_idle_blocks"


@figure(needs=("baseline_loss", "reference_loss"), tuning=True)
def placement(table: Table) -> Figure:
    """Validation loss by scheme, a panel a combination of the other axes; below it the share of
    idle blocks, where it was measured."""
    parts = [part for panel in panels(table) for part in _by_depth(panel)]
    quantities = {"final_loss": "validation loss (nats per token)"}
    notes = ["bar: mean and its 95 % interval where all trained", "hollow: did not train"]
    if IDLE in table.runs:
        quantities[IDLE] = "share of idle blocks"
        notes[-1] += "\nidle: removal costs under 0.01 nats"  # a line of its own
    sheet, axes = drawings.page(
        "Schemes at one depth",
        caption(table, *notes, "grey: unigram and bigram tables", *edge_note(table)),
        panels=len(parts) * len(quantities),
        columns=len(parts),
        panel_height=0.26 * len(parts[0].schemes) + 0.75,
    )
    cells = [(column, panel) for column in quantities for panel in parts]
    for ax, (column, panel) in zip(axes, cells, strict=True):
        _rows(ax, panel, column)
        ax.set_xlabel(quantities[column])
        if column == "final_loss":
            ax.set_title(panel.title)
            for level in ("baseline_loss", "reference_loss"):
                value = panel.runs[level].mean()
                ax.axvline(value, color=drawings.GREY, linestyle=drawings.DOTTED, zorder=1)
        else:
            ax.set_xlim(-0.03, 1.03)
    return sheet


def _by_depth(panel: Panel) -> Iterator[Panel]:
    """A panel a depth, so that no mean is taken over several."""
    for depth, layers in panel.ticks.items():
        part = replace(
            panel.table,
            runs=where(panel.runs, ["depth"], [depth]),
            missing=where(panel.missing, ["depth"], [depth]),
        )
        words = [f"{layers} layers"] if len(panel.ticks) > 1 else []
        title = ", ".join(filter(None, [*words, panel.title]))
        yield replace(panel, title=title, table=part, ticks={depth: layers})


def _rows(ax: Axes, panel: Panel, column: str) -> None:
    """A line a scheme: every seed, the mean with its interval, and in words who has no value."""
    names = {scheme: row for row, scheme in enumerate(panel.schemes)}
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_yticks(list(names.values()), list(names))
    ax.grid(False, axis="y")
    starred = set(panel.runs[at_edge(panel)]["scheme"])
    for scheme, row in names.items():
        runs, seen = panel.runs[panel.runs["scheme"] == scheme], looks.look(scheme)
        seeds = row + 0.3 * (runs["seed"].rank() / (len(runs) + 1) - 0.5)
        for filled in (True, False):
            drawn = runs[((runs["outcome"] == "trained") == filled) & runs[column].notna()]
            if len(drawn):
                ax.plot(drawn[column], seeds[drawn.index], **seen.point(filled=filled, size=4))
        if len(runs) and (runs["outcome"] == "trained").all():
            mean, low, high = interval(runs[column])
            ax.plot([low, high], [row, row], color=seen.color, linewidth=1.2, alpha=0.8)
            ax.plot([mean, mean], [row - 0.32, row + 0.32], color="black", linewidth=1.2)
        if scheme in starred and column == "final_loss":
            ax.text(0.01, row, "*", transform=ax.get_yaxis_transform(), va="center")
        if words := _without(runs, panel.missing, scheme, column):
            place = ax.get_yaxis_transform()
            ax.text(0.99, row, words, transform=place, ha="right", va="center", fontsize=6.5)


def _without(runs: pd.DataFrame, missing: pd.DataFrame, scheme: str, column: str) -> str:
    outcomes = runs.loc[runs[column].isna(), "outcome"].value_counts()
    words = [f"{count} {outcome}" for outcome, count in outcomes.items()]
    absent = int((missing["scheme"] == scheme).sum())
    if runs.empty and not absent:
        return "no such cell"  # as of RMSNorm in a scheme without norms
    return ", ".join(words + [f"{absent} missing"] * (absent > 0))
