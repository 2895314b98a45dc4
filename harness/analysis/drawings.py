"""What every figure shares: one style, depth axes, strips, maps, byte-stable files.

Uses matplotlib without pyplot, so nothing global changes; knows no study and no column.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from harness.analysis.looks import look
from harness.results.files import replace

WIDTH, HEIGHT = 6.5, 4.0  # inches: a column of text
UNDERFLOW = 1e-30  # below this a norm is float32 dust, and squeezes the rest of a log axis
SMALLEST = 1e-300  # for axes on which a norm may be as small as it is
GREY = "#5a5a5a"
DOTTED = (0, (1, 1.5))
DASHED = (0, (2.2, 1.2))
STYLE = {
    "svg.hashsalt": "harness",
    "savefig.dpi": 150,
    "font.family": ["DejaVu Sans"],  # ships with matplotlib: the same glyphs on every machine
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "legend.frameon": False,
    "legend.handlelength": 3.8,
    "lines.linewidth": 1.3,
}

# Fill, ink, hatch and its colour: each worse outcome is darker.
TILES = {
    "trained": ("#e4eff6", "black", "#e4eff6", ""),
    "stalled": ("#f0b862", "black", "#d99a3a", "///"),
    "diverged": ("#b23c3c", "white", "#cf6a6a", "xxx"),
    "crashed": ("#2b1a26", "white", "#6b5564", "..."),
    "partial": ("#e4eff6", "black", "#b4cbd9", "////"),
    "missing": ("white", GREY, "#c4c4c4", "////"),
}


def style() -> AbstractContextManager[None]:
    """The style of every figure, whatever the user's matplotlibrc says."""
    return matplotlib.style.context(["default", STYLE])


def page(
    title: str,
    caption: str,
    *,
    panels: int,
    columns: int,
    panel_height: float = 2.4,
    panel_width: float = 2.2,
    sharey: bool | Literal["row"] = True,
) -> tuple[Figure, list[Axes]]:
    """An empty figure with its panels, row by row; the caption is the small print below."""
    rows = -(-panels // columns)
    least = HEIGHT if panel_height >= 2.4 else 0.0
    size = (max(WIDTH, panel_width * columns + 1.4), max(least, panel_height * rows + 0.9))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=6.5, color=GREY)
    axes = list(figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def shifts(count: int, width: float) -> list[float]:
    """Factors on depth that set `count` markers side by side within `width` octaves."""
    return [2.0 ** (width * ((i + 0.5) / count - 0.5)) for i in range(count)]


def octaves(depths: Iterable[float]) -> float:
    """Free space around a depth: the smallest gap between neighbours, one octave at most."""
    return float(min([1.0, *np.diff(np.log2(sorted(depths)))]))


def depth_label(ticks: Mapping[float, str]) -> str:
    """The name of an axis with these ticks."""
    pairs = any("-" in text for text in ticks.values())
    return "depth (encoder-decoder layers)" if pairs else "depth (layers)"


def depth_axis(ax: Axes, ticks: Mapping[float, str]) -> None:
    """Logarithmic depth with exactly the depths that were planned as ticks."""
    ax.set_xlabel(depth_label(ticks))
    margin = 2 ** (0.55 * octaves(ticks))
    ax.set_xscale("log", base=2)
    ax.set_xlim(min(ticks) / margin, max(ticks) * margin)
    ax.xaxis.set_major_locator(FixedLocator(list(ticks)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda depth, _: ticks.get(round(depth), "")))
    ax.grid(False, axis="x")
    if any("-" in text for text in ticks.values()):
        ax.tick_params(axis="x", labelsize=6.5)  # 12-12 beside 18-18


def heightless(norm: float, least: float = UNDERFLOW) -> str:
    """Why a norm has no place on a log axis; empty if it has one."""
    if math.isnan(norm):
        return "no value"
    if math.isinf(norm):
        return "infinite"
    return "exactly 0" if norm == 0 else f"< {least:g}" if norm < least else ""


def strip(
    ax: Axes,
    names: Sequence[str],
    entries: Iterable[tuple[str, float, str]],
    *,
    space: float,
    below: bool = False,
) -> Axes:
    """A band beside the panel for what has no height: one marker an entry (name, depth, scheme)."""
    band = 0.065 * len(names)
    inset = ax.inset_axes((0, -band - 0.025 if below else 1.025, 1, band), sharex=ax)
    inset.set_ylim(-0.5, len(names) - 0.5)
    inset.set_yticks(range(len(names)), names, fontsize=7)
    inset.tick_params(axis="y", length=0)
    inset.grid(False)
    inset.set_facecolor("#f4f4f4")
    inset.spines[:].set_visible(False)
    if size := ax.xaxis.get_tick_params().get("labelsize"):
        inset.tick_params(axis="x", labelsize=size)
    if below:
        inset.set_xlabel(ax.get_xlabel())
        ax.set_xlabel("")
    (ax if below else inset).tick_params(axis="x", bottom=False, labelbottom=False)
    if "missing" in names:
        row = names.index("missing")
        inset.axhspan(
            row - 0.5, row + 0.5, hatch="////", facecolor="white", edgecolor="#c4c4c4", linewidth=0
        )
    slots: dict[tuple[str, float], list[str]] = {}
    for name, depth, scheme in entries:
        slots.setdefault((name, depth), []).append(scheme)
    for (name, depth), schemes in slots.items():
        for scheme, shift in zip(schemes, shifts(len(schemes), 0.8 * space), strict=True):
            drawn = look(scheme).point(filled=False, size=4.2)
            inset.plot([depth * shift], [names.index(name)], **drawn)
    return inset


def bars(
    ax: Axes, depths: Iterable[float], low: Iterable[float], high: Iterable[float], color: str
) -> None:
    """Intervals that do not stretch the axis: at n = 2 they outgrow everything else."""
    ends = [((x, a), (x, b)) for x, a, b in zip(depths, low, high, strict=True) if a == a]
    ax.add_collection(LineCollection(ends, colors=color, linewidths=0.8, alpha=0.7), autolim=False)


def level(ax: Axes, value: float, text: str, *, above: bool) -> None:
    """A horizontal line, named in the right margin where no data can be."""
    ax.axhline(value, color=GREY, linestyle=DOTTED, linewidth=1.0, zorder=1)
    ax.annotate(
        text,
        (1, value),
        xytext=(3, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        verticalalignment="bottom" if above else "top",
        fontsize=6.5,
        color=GREY,
    )


def chart(ax: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    """The frame of a map: named columns and rows, the first row on top."""
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)


def tile(ax: Axes, column: int, row: int, kind: str, text: str) -> None:
    """One cell of a map: fill and hatch say the kind, the text says the rest."""
    fill, ink, rim, hatch = TILES[kind]
    corner = (column - 0.48, row - 0.47)
    ax.add_patch(Rectangle(corner, 0.96, 0.94, facecolor=fill, edgecolor=rim, hatch=hatch, lw=0))
    plate = {"facecolor": fill, "edgecolor": "none", "pad": 1.2}
    ax.text(column, row, text, color=ink, ha="center", va="center", fontsize=7, bbox=plate)


def frame(ax: Axes, column: int, row: int, *, dashed: bool = False) -> None:
    """A line around a cell of a map."""
    corner, line = (column - 0.45, row - 0.44), DASHED if dashed else "-"
    ax.add_patch(
        Rectangle(corner, 0.9, 0.88, fill=False, edgecolor="black", lw=1.4, ls=line, zorder=4)
    )


def stop(ax: Axes, column: int, row: int) -> None:
    """A bar at the right of a cell of a map."""
    ax.add_patch(Rectangle((column + 0.46, row - 0.47), 0.06, 0.94, facecolor="black", zorder=5))


def legend(figure: Figure, schemes: Iterable[str], *, columns: int = 0) -> None:
    """The schemes' looks, outside the panels: on the right, or in so many columns on top, where a
    short title leaves room."""
    handles = [
        Line2D([], [], label=scheme, **(look(scheme).point(filled=True) | look(scheme).line))
        for scheme in schemes
    ]
    if columns:
        figure.legend(handles=handles, loc="outside upper right", ncols=columns)
    else:
        figure.legend(handles=handles, loc="outside right upper")


def save(figure: Figure, stem: Path) -> None:
    """Write `stem`.svg and `stem`.png; the same figure gives the same bytes."""
    for suffix, metadata in (
        ("svg", {"Date": None, "Creator": None}),
        ("png", {"Software": None}),
    ):
        buffer = io.BytesIO()
        with style():
            figure.savefig(buffer, format=suffix, metadata=metadata)
        replace(stem.with_name(f"{stem.name}.{suffix}"), buffer.getvalue())
