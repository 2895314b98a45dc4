"""Figures of translation against depth: ours beside the paper's own numbers, and by resource."""

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis import drawings
from harness.analysis.figures.depth import levels
from harness.analysis.figures.paper import published
from harness.analysis.figures.plot import (
    caption,
    figure,
    join,
    lost,
    mark_runs,
    means,
    means_note,
    strips,
    wrapped,
)
from harness.analysis.statistics import Panel, by_scheme, panels
from harness.results.table import Table

QUANTITIES = {
    "final_loss": "validation loss\n(nats per token)",
    "metric_source_gain": "source gain\n(nats per token)",
    "metric_bleu": "BLEU",
}
UNTRAINED = {"metric_bleu_copy": "source copied", "metric_bleu_nearest": "nearest in\ntraining"}
PAPER = {
    "figure_6": "paper, Figure 6: IWSLT-14 De-En (digitised)",
    "table_1": "paper, Table 1: WMT-17 En-De (printed)",
}
NOTES = (
    "source copied, nearest in training: BLEU of the source, and of the translation of the "
    "training sentence most like it",
    "right, hollow: the paper's, arXiv:2203.00555, not to be mixed with ours: other corpora, "
    "larger models, longer training",
    "its Figure 6 is read from the drawing (reading error 0.1 to 0.3 BLEU), its Table 1 as "
    "printed; R-Fixup: only there",
)


@figure(
    needs=("baseline_loss", "reference_loss", *list(QUANTITIES)[1:], *UNTRAINED),
    paper=PAPER,
)
def figure_6(table: Table) -> Figure:
    """Validation loss, source gain and BLEU against depth, and on axes of their own the BLEU that
    the paper reports on its corpora."""
    parts = panels(table)
    ours = [(panel, column) for panel in parts for column in QUANTITIES]
    theirs = [_paper(name, parts[0].schemes) for name in PAPER]
    sheet, axes = drawings.page(
        "Translation by depth",
        "\n".join((caption(table, means_note(table), "hollow: stalled"), *NOTES)),
        panels=2 * len(ours),
        columns=2,
        panel_width=3.6,
        sharey=False,
    )
    left, right = axes[::2], _two(axes[1::2], sheet)
    unplaced = []
    for ax, (panel, column) in zip(left, ours, strict=True):
        unplaced.append(_against_depth(ax, panel, column))
        _levels(ax, panel.runs, column)
        ax.set_ylabel(QUANTITIES[column])
        if column != "metric_bleu":
            ax.set_xlabel("")  # that of the panel below is its own
    tops = strips(left, [panel for panel, _ in ours], unplaced)
    for top, panel in zip(tops[:: len(QUANTITIES)], parts, strict=True):
        name = ", ".join(filter(None, (f"ours: {table.study}", panel.title)))
        top.set_title(wrapped(name, 48))
    _draw_paper(right, theirs)
    names = [scheme for panel in (*parts, *theirs) for scheme in panel.schemes]
    drawings.legend(sheet, dict.fromkeys(names), columns=4)
    return sheet


def _two(axes: list[Axes], sheet: Figure) -> list[Axes]:
    """A column of panels made two, the first as high as all but one: ten depths and nine schemes
    that differ by a BLEU need the height."""
    grid, column = axes[0].get_gridspec(), axes[0].get_subplotspec()
    assert grid and column
    for ax in axes:
        ax.remove()
    return [sheet.add_subplot(grid[rows, column.colspan.start]) for rows in (slice(-1), -1)]


def _against_depth(ax: Axes, panel: Panel, column: str) -> pd.DataFrame:
    """Every run and the means; the runs that have no value."""
    drawings.depth_axis(ax, panel.ticks)
    mark_runs(ax, panel, panel.runs, column)
    means(ax, panel, column)
    return lost(panel, column)


def _levels(ax: Axes, runs: pd.DataFrame, column: str) -> None:
    """What is reached without training, or without reading the source."""
    if column == "final_loss":
        levels(ax, runs, named=True)
    elif column == "metric_source_gain":
        drawings.level(ax, 0.0, "source\nnot used", above=True)
    else:
        heights = {name: runs[baseline].mean() for baseline, name in UNTRAINED.items()}
        for name, height in heights.items():
            if math.isfinite(height):
                above = height == max(heights.values())
                drawings.level(ax, height, f"{name}\n{height:.1f}", above=above)


def _draw_paper(axes: list[Axes], parts: list[Panel]) -> None:
    """Hollow markers and a line a scheme; what diverged in the strip."""
    for ax, panel in zip(axes, parts, strict=True):
        drawings.depth_axis(ax, panel.ticks)
        mark_runs(ax, panel, panel.runs, "bleu")
        for scheme, rows in by_scheme(panel.runs):
            join(ax, panel, scheme, rows.set_index("depth")["bleu"])
        ax.set(xlabel="depth (layers of each stack)", ylabel="BLEU (paper)")
    failed = [panel.runs[panel.runs["bleu"].isna()] for panel in parts]
    failed = [rows.assign(name="diverged (paper)") for rows in failed]
    for top, panel in zip(strips(axes, parts, failed), parts, strict=True):
        top.set_title(panel.title)


def _paper(name: str, schemes: list[str]) -> Panel:
    """The paper's rows as a panel, with `bleu` in place of a loss; ours come first, in our order.
    What it trained is marked as published, hence hollow."""
    rows = published(name)
    rows["scheme"] = rows["scheme"].where(rows["scheme"] != "", rows["label"])
    # An octave a depth: evenly spaced on the logarithmic axis that every figure of depth has.
    places = {layers: 2.0**i for i, layers in enumerate(sorted(rows["encoder_layers"].unique()))}
    runs = rows.assign(depth=rows["encoder_layers"].map(places), seed=0, outcome="published")
    present = dict.fromkeys([*schemes, *runs["scheme"]])
    own = [scheme for scheme in present if scheme in set(runs["scheme"])]
    ticks = {place: f"{layers:g}" for layers, place in places.items()}
    return Panel(PAPER[name], Table(name, (), runs, pd.DataFrame(), runs.iloc[:0]), ticks, own)


@figure(needs=("metric_loss_low", "metric_loss_high"))
def by_resource(table: Table) -> Figure:
    """Validation loss against depth, and BLEU where it was measured, of the pairs of languages with
    little and with much to train on."""
    both = {"metric_bleu_low", "metric_bleu_high"} <= set(table.runs)
    quantities = {"loss": QUANTITIES["final_loss"]} | ({"bleu": "BLEU"} if both else {})
    cells = [
        (panel, quantity, group)
        for panel in panels(table)
        for quantity in quantities
        for group in ("low", "high")
    ]
    sheet, axes = drawings.page(
        "Low- and high-resource pairs against depth",
        caption(table, means_note(table), "hollow: stalled"),
        panels=len(cells),
        columns=2,
        panel_width=2.9,
        sharey="row",
    )
    unplaced = []
    for i, (ax, (panel, quantity, group)) in enumerate(zip(axes, cells, strict=True)):
        unplaced.append(_against_depth(ax, panel, f"metric_{quantity}_{group}"))
        if i % 2 == 0:
            ax.set_ylabel(quantities[quantity])
    tops = strips(axes, [panel for panel, *_ in cells], unplaced)
    for top, (panel, _, group) in zip(tops, cells, strict=True):
        top.set_title(", ".join(filter(None, (f"{group}-resource pairs", panel.title))))
    drawings.legend(sheet, cells[0][0].schemes)
    return sheet
