"""The figures: each a function of a table, found by name, drawn to files with a sidecar.

No run is ever left out: what has no height on an axis stands in a strip beside it. No torch.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis import drawings
from harness.analysis.files import replace
from harness.analysis.records import Table
from harness.analysis.statistics import BOOTSTRAP_FROM, Panel, by_scheme, panels, points, verdict
from harness.errors import ConfigError, MissingRuns, did_you_mean

STACKS = ("encoder", "decoder")
ALWAYS = ("scheme", "seed", "encoder_layers", "decoder_layers", "outcome", "final_loss")
Render = Callable[[Table], Figure]


@dataclass(frozen=True)
class Plot:
    """A figure by name, with the columns it needs and whether it reads the curves."""

    name: str
    needs: tuple[str, ...]
    curves: bool
    render: Render

    def __call__(self, table: Table) -> Figure:
        """Draw; MissingRuns where nothing ran, ConfigError where a column is lacking."""
        what = f"{table.study}: figure {self.name!r}"
        lacking = "runs" if table.runs.empty else "curves"
        if table.runs.empty or (self.curves and table.curves.empty):
            remedy = f"`harness run {table.study}` makes them"
            raise MissingRuns(f"{what} has no {lacking} to draw; {remedy}")
        for column in (*ALWAYS, *self.needs):
            if column not in table.runs:
                raise ConfigError(f"{what} needs the column {column!r}, which the results lack")
        with drawings.style():
            return self.render(table)


FIGURES: dict[str, Plot] = {}


def figure(*, needs: Iterable[str] = (), curves: bool = False) -> Callable[[Render], Plot]:
    """Register a function of a table as the figure of its name."""

    def register(render: Render) -> Plot:
        plot = Plot(render.__name__, tuple(needs), curves, render)
        FIGURES[plot.name] = plot
        return plot

    return register


def find(name: str) -> Plot:
    """The figure of this name, with dashes or underscores; ConfigError if there is none."""
    key = name.replace("-", "_")
    if key not in FIGURES:
        raise ConfigError(f"unknown figure {name!r}{did_you_mean(key, FIGURES)}")
    return FIGURES[key]


def draw(plot: Plot, table: Table, folder: Path) -> Path:
    """Write the figure as SVG and PNG with a sidecar naming the rows it shows; the SVG's path."""
    stem = folder / plot.name
    drawings.save(plot(table), stem)
    replace(stem.with_suffix(".json"), _sidecar(plot, table))
    return stem.with_suffix(".svg")


def stale(plot: Plot, table: Table, folder: Path) -> bool:
    """Whether the files in the folder are absent or show other rows than the table's."""
    svg, png, sidecar = ((folder / plot.name).with_suffix(s) for s in (".svg", ".png", ".json"))
    drawn = svg.exists() and png.exists() and sidecar.exists()
    return not drawn or sidecar.read_bytes() != _sidecar(plot, table)


def _sidecar(plot: Plot, table: Table) -> bytes:
    frames = [table.runs, table.missing, *([table.curves] if plot.curves else [])]
    text = "\n".join(frame.to_csv(index=False, lineterminator="\n") for frame in frames)
    facts = {
        "figure": plot.name,
        "study": table.study,
        "rows": hashlib.sha256(text.encode()).hexdigest(),
        "runs": len(table.runs),
        "missing": len(table.missing),
    }
    return (json.dumps(facts, indent=2) + "\n").encode()


def _caption(table: Table, *notes: str) -> str:
    seeds = points(table)["n"]
    span = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    missing = f", missing cells: {len(table.missing)}" if len(table.missing) else ""
    return f"{table.study}: n = {span} seeds a point{missing}\n{'; '.join(notes)}"


def _slots(panel: Panel) -> tuple[dict[str, float], float]:
    """Factor on depth per scheme, so that schemes stand side by side, and each one's width."""
    width = min(0.12, 0.7 * drawings.octaves(panel.ticks) / len(panel.schemes))
    places = drawings.shifts(len(panel.schemes), width * len(panel.schemes))
    return dict(zip(panel.schemes, places, strict=True)), width


def _mark_runs(ax: Axes, panel: Panel, runs: pd.DataFrame, column: str) -> None:
    """Every run as a marker, hollow where it did not train; seeds side by side in their slot."""
    places, width = _slots(panel)
    seeds = sorted(panel.runs["seed"].unique())
    beside = dict(zip(seeds, drawings.shifts(len(seeds), 0.75 * width), strict=True))
    for scheme, rows in by_scheme(runs):
        x = rows["depth"] * places[scheme] * rows["seed"].map(beside)
        for filled in (True, False):
            y = rows[column].where((rows["outcome"] == "trained") == filled).dropna()
            ax.plot(x[y.index], y, **drawings.look(scheme).point(filled=filled), zorder=3)


def _join(ax: Axes, panel: Panel, scheme: str, values: "pd.Series[float]") -> None:
    """The scheme's line over all depths of the panel, broken where it has no value."""
    line = values.reindex(list(panel.ticks))
    ax.plot(line.index * _slots(panel)[0][scheme], line, **drawings.look(scheme).line)


def _strips(
    axes: list[Axes], parts: list[Panel], unplaced: list[pd.DataFrame], *, below: bool = False
) -> list[Axes]:
    """A strip a panel for the rows with a `name` in place of a height, and the missing cells."""
    frames = [
        pd.concat([panel.missing.assign(name="missing"), rows])[["name", "depth", "scheme"]]
        for panel, rows in zip(parts, unplaced, strict=True)
    ]
    names = list(dict.fromkeys(pd.concat(frames)["name"]))
    if not names:
        return axes
    return [
        drawings.strip(
            ax,
            names,
            frame.itertuples(index=False),
            space=drawings.octaves(panel.ticks),
            below=below,
        )
        for ax, panel, frame in zip(axes, parts, frames, strict=True)
    ]


def _named(table: Table, axes: list[Axes], columns: int) -> list[bool]:
    """Which panels name their levels: the last of a row speaks for all if all are equal."""
    differ = table.runs[["baseline_loss", "reference_loss"]].round(2).nunique().max() > 1
    return [differ or i % columns == 0 or i == len(axes) for i in range(1, len(axes) + 1)]


def _levels(ax: Axes, runs: pd.DataFrame, *, named: bool) -> None:
    """What a model that reads nothing, and one that reads one token, would reach."""
    means = {"baseline": runs["baseline_loss"].mean(), "bigram": runs["reference_loss"].mean()}
    for name, value in means.items():
        if math.isfinite(value):
            text = f"{name}\n{value:.2f}" if named else ""
            drawings.level(ax, value, text, above=value == max(means.values()))


@figure(needs=("baseline_loss", "reference_loss"))
def depth_curve(table: Table) -> Figure:
    """Validation loss against depth: every seed, the mean while all train, its interval."""
    parts = panels(table)
    columns = min(3, len(parts))
    few = points(table)["n"].max() < BOOTSTRAP_FROM
    kind = "Student t" if few else f"Student t, bootstrap from n = {BOOTSTRAP_FROM}"
    bar = f"bar: its 95 % interval ({kind}), cut at the frame"
    caption = _caption(table, "line: mean where all trained", bar, "hollow: stalled")
    title = "Validation loss against depth"
    sheet, axes = drawings.page(title, caption, panels=len(parts), columns=columns)
    unplaced = []
    for ax, panel, named in zip(axes, parts, _named(table, axes, columns), strict=True):
        drawings.depth_axis(ax, panel.ticks)
        _mark_runs(ax, panel, panel.runs, "final_loss")
        _levels(ax, panel.runs, named=named)
        for scheme, means in by_scheme(points(panel.table, by=("scheme", "depth"))):
            _join(ax, panel, scheme, means.set_index("depth")["final_loss"])
            x = means["depth"] * _slots(panel)[0][scheme]
            drawings.bars(ax, x, means["low"], means["high"], drawings.look(scheme).color)
        lost = panel.runs[panel.runs["final_loss"].isna()]
        unplaced.append(lost.assign(name=lost["outcome"]))
    for top, panel in zip(_strips(axes, parts, unplaced), parts, strict=True):
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
        _caption(table, "a/b: a of b planned seeds trained", "@: median step of divergence"),
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
        ax.set(xlim=(-0.5, len(panel.ticks) - 0.5), ylim=(len(schemes) - 0.5, -0.5))
        ax.set_xticks(range(len(panel.ticks)), list(panel.ticks.values()))
        ax.set_yticks(range(len(schemes)), schemes)
        ax.tick_params(length=0)
        ax.grid(False)
        ax.spines[:].set_visible(False)
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
    caption = _caption(table, "line: geometric mean", "hollow: stalled, diverged or crashed")
    title = "Gradient of the first block against depth"
    sheet, axes = drawings.page(title, caption, panels=len(parts), columns=len(parts) // 2)
    unplaced = []
    for ax, (end, stack, panel) in zip(axes, parts, strict=True):
        drawings.depth_axis(ax, panel.ticks)
        ax.set_yscale("log")
        column = f"grad_norm_first_{stack}{end}"
        runs = panel.runs[panel.runs[f"{stack}_layers"].notna()]
        names = runs[column].map(drawings.heightless)
        _mark_runs(ax, panel, runs[names == ""], column)
        for scheme, rows in by_scheme(runs):
            logs = np.log(rows[column].where(names == ""))
            # One seed without a height leaves its depth without a mean.
            means = logs.groupby(rows["depth"]).agg(lambda seeds: seeds.mean(skipna=False))
            _join(ax, panel, scheme, np.exp(means))
        unplaced.append(runs.assign(name=names)[names != ""])
        when = "at step 0" if end else "window median"
        ax.set_title(", ".join(filter(None, (stack, when, panel.title))))
    _strips(axes, [panel for *_, panel in parts], unplaced, below=True)
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
    caption = _caption(table, "one line a run", *notes)
    sheet, axes = drawings.page("Training loss", caption, panels=len(parts), columns=columns)
    starts = np.array([table.runs["baseline_loss"].max(), *(c.iloc[0] for c in traces.values())])
    ceiling = float(starts[np.isfinite(starts)].max())
    for ax, (panel, depth), named in zip(axes, parts, _named(table, axes, columns), strict=True):
        runs = panel.runs[panel.runs["depth"] == depth]
        drawn = runs.loc[runs["run_id"].isin(list(traces)), ["run_id", "scheme", "diverged_at"]]
        for run_id, scheme, diverged_at in drawn.itertuples(index=False, name=None):
            seen, curve = drawings.look(str(scheme)), traces[run_id]
            ax.plot(curve.index, curve, **seen.line, linewidth=0.9)
            if diverged_at == diverged_at:
                before = curve[(curve.index <= diverged_at) & np.isfinite(curve)]
                height = min([ceiling, *before.iloc[-1:]])
                ax.plot([diverged_at], [height], **seen.point(filled=False, size=7), zorder=3)
        _levels(ax, runs, named=named)
        ax.set_ylim(top=1.05 * ceiling)
        ax.set_title(", ".join(filter(None, (f"{panel.ticks[depth]} layers", panel.title))))
        ax.set_xlabel("step")
    sheet.supylabel("training loss (nats per token)", fontsize=8)
    drawings.legend(sheet, table.runs["scheme"].unique())
    return sheet
