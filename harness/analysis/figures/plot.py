"""What a figure is: a function of a table, found by name, drawn to files with a sidecar.

No run is ever left out: what has no height on an axis stands in a strip beside it. No torch.
"""

import dataclasses
import hashlib
import json
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis import drawings, looks
from harness.analysis.figures.paper import published
from harness.analysis.statistics import BOOTSTRAP_FROM, Panel, by_scheme, edges, points
from harness.errors import ConfigError, MissingRuns, did_you_mean
from harness.results.columns import COST, PROVENANCE, REUSED
from harness.results.files import replace
from harness.results.rows import RENAMED
from harness.results.table import Table
from harness.sweep.plan import short

ALWAYS = ("scheme", "seed", "encoder_layers", "decoder_layers", "outcome", "final_loss")
Render = Callable[[Table], Figure]


@dataclass(frozen=True)
class Plot:
    """A figure by name, with the columns it needs, the tables of the paper that it shows, and
    whether it reads curves or the tuning."""

    name: str
    needs: tuple[str, ...]
    paper: tuple[str, ...]
    curves: bool
    tuning: bool
    render: Render

    def __call__(self, table: Table) -> Figure:
        """Draw; MissingRuns where nothing ran, ConfigError where a column is lacking."""
        what = f"{table.study}: figure {self.name!r}"
        lacking = "runs" if table.runs.empty else "curves"
        if table.runs.empty or (self.curves and table.curves.empty):
            remedy = f"make them with '{table.command}'"
            if lacking == "curves":
                remedy = f"take them from the tracker with '{table.command}': the rows are there"
            raise MissingRuns(f"{what} has no {lacking} to draw; {remedy}")
        for column in (*ALWAYS, *self.needs):
            if column not in table.runs:
                raise ConfigError(f"{what} needs the column {column!r}, which the results lack")
        with drawings.style():
            return self.render(table)


FIGURES: dict[str, Plot] = {}


def figure(
    *,
    needs: Iterable[str] = (),
    paper: Iterable[str] = (),
    curves: bool = False,
    tuning: bool = False,
) -> Callable[[Render], Plot]:
    """Register a function of a table as the figure of its name."""

    def register(render: Render) -> Plot:
        plot = Plot(render.__name__, tuple(needs), tuple(paper), curves, tuning, render)
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
    """Writes the figure as SVG and PNG with a sidecar naming the rows it shows; the SVG's path.

    The figure of a selection has the selection in its name, and stands beside that of all cells.
    """
    svg, _, sidecar = _paths(plot, table, folder)
    drawings.save(plot(table), svg.parent / svg.name.removesuffix(".svg"))
    replace(sidecar, _sidecar(plot, table))
    return svg


def stale(plot: Plot, table: Table, folder: Path) -> bool:
    """Whether the files in the folder are absent or show other rows than the table's."""
    svg, png, sidecar = _paths(plot, table, folder)
    drawn = svg.exists() and png.exists() and sidecar.exists()
    return not drawn or sidecar.read_bytes() != _sidecar(plot, table)


def _paths(plot: Plot, table: Table, folder: Path) -> list[Path]:
    stem = short(plot.name + table.selection)
    return [folder / f"{stem}{suffix}" for suffix in (".svg", ".png", ".json")]


def _sidecar(plot: Plot, table: Table) -> bytes:
    """Names the rows by what they measured: two runs of a study have equal sidecars."""
    frames = [_shown(table.runs), table.missing, *([table.curves] if plot.curves else [])]
    if plot.tuning and table.tuning:
        frames += [_shown(table.tuning.runs), table.tuning.missing]
    frames += [published(name) for name in plot.paper]
    text = "\n".join(frame.to_csv(index=False, lineterminator="\n") for frame in frames)
    facts = {
        "figure": plot.name,
        "study": table.study + table.selection,
        "rows": hashlib.sha256(text.encode()).hexdigest(),
        "runs": len(table.runs),
        "missing": len(table.missing),
    }
    return (json.dumps(facts, indent=2) + "\n").encode()


def _shown(runs: pd.DataFrame) -> pd.DataFrame:
    """The measurements, each column under its oldest name: a new name makes no figure stale."""
    oldest = {new: old for old, new in RENAMED.items()}
    shown = runs.drop(columns=[*COST, *PROVENANCE, REUSED], errors="ignore")
    return shown.rename(columns=oldest)


def caption(table: Table, *notes: str) -> str:
    """The small print: study, seeds a point, what is missing, and how to read it."""
    seeds = points(table)["n"]
    span = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    missing = f", missing cells: {len(table.missing)}" if len(table.missing) else ""
    first = wrapped(f"{table.study}{table.selection}: n = {span} seeds a point{missing}", 110)
    return f"{first}\n{'; '.join(notes)}"


def wrapped(text: str, width: int) -> str:
    """Lines of at most `width` characters; the name of a variant, with its fields, may be long."""
    return textwrap.fill(text, width, break_on_hyphens=False)


def means_note(table: Table) -> str:
    """How to read the line and the bar of `means`."""
    few = points(table)["n"].max() < BOOTSTRAP_FROM
    kind = "Student t" if few else f"Student t, bootstrap from n = {BOOTSTRAP_FROM}"
    return f"line: mean where all trained; bar: its 95 % interval ({kind}), cut at the frame"


def slots(panel: Panel) -> tuple[dict[str, float], float]:
    """Factor on depth per scheme, so that schemes stand side by side, and each one's width."""
    width = min(0.12, 0.7 * drawings.octaves(panel.ticks) / len(panel.schemes))
    places = drawings.shifts(len(panel.schemes), width * len(panel.schemes))
    return dict(zip(panel.schemes, places, strict=True)), width


def mark_runs(ax: Axes, panel: Panel, runs: pd.DataFrame, column: str) -> None:
    """Every run as a marker, hollow where it did not train; seeds side by side in their slot."""
    places, width = slots(panel)
    seeds = sorted(panel.runs["seed"].unique())
    beside = dict(zip(seeds, drawings.shifts(len(seeds), 0.75 * width), strict=True))
    for scheme, rows in by_scheme(runs):
        x = rows["depth"] * places[scheme] * rows["seed"].map(beside)
        for filled in (True, False):
            y = rows[column].where((rows["outcome"] == "trained") == filled).dropna()
            ax.plot(x[y.index], y, **looks.look(scheme).point(filled=filled), zorder=3)


def join(ax: Axes, panel: Panel, scheme: str, values: "pd.Series[float]") -> None:
    """The scheme's line over all depths of the panel, broken where it has no value."""
    line = values.reindex(list(panel.ticks))
    ax.plot(line.index * slots(panel)[0][scheme], line, **looks.look(scheme).line)


def means(ax: Axes, panel: Panel, column: str) -> None:
    """Each scheme's mean over depth, while all its runs trained, with the interval."""
    runs = panel.runs.assign(final_loss=panel.runs[column])  # what `points` takes the mean of
    part = dataclasses.replace(panel.table, runs=runs)
    for scheme, rows in by_scheme(points(part, by=("scheme", "depth"))):
        join(ax, panel, scheme, rows.set_index("depth")["final_loss"])
        x = rows["depth"] * slots(panel)[0][scheme]
        drawings.bars(ax, x, rows["low"], rows["high"], looks.look(scheme).color)


def at_edge(panel: Panel) -> "pd.Series[bool]":
    """By run of a panel, True if a tuned value of it is at an edge of those tried."""
    return edges(panel.table, panel.runs).any(axis=1)


def edge_note(table: Table) -> list[str]:
    """How to read an asterisk, if a figure of the table has one."""
    marked = edges(table, table.runs).any(axis=None)
    return [f"*: {' or '.join(table.tuned)} at an edge of the values tried"] if marked else []


def mark_edges(ax: Axes, panel: Panel, column: str) -> None:
    """An asterisk above each point whose tuned value is at an edge of those tried."""
    marked = panel.runs[at_edge(panel)].dropna(subset=[column])
    highest = marked.groupby(["scheme", "depth"], sort=False, as_index=False)[column].max()
    for scheme, depth, height in highest[["scheme", "depth", column]].itertuples(index=False):
        ax.annotate(
            "*",
            (depth * slots(panel)[0][scheme], height),
            xytext=(0, 1),
            textcoords="offset points",
            ha="center",
            color=looks.look(scheme).color,
        )


def lost(panel: Panel, column: str) -> pd.DataFrame:
    """The runs without a value, for `strips`: named by what became of them."""
    runs = panel.runs[panel.runs[column].isna()]
    return runs.assign(name=runs["outcome"].replace("trained", "no value"))


def strips(
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
