"""The figure of a scheme's signature: three small panels over depth, beside Post-Norm in grey."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from harness.analysis import drawings
from harness.analysis.looks import Look, look

PALE = "#a0a0a0"
HEIGHT = 2.9  # inches
# Of a block: whether its marker is filled, and its size.
BLOCKS = {"first": (True, 5.0), "middle": (True, 2.8), "last": (False, 4.2)}


def signature(scheme: str, rows: Sequence[dict[str, Any]], steps: int, small: str) -> Figure:
    """Gradient, activation and update of the model's last stack against its depth."""
    frame = pd.DataFrame(rows)
    paired = frame["stack"].nunique() > 1
    last = frame["stack"].iloc[-1]
    frame = frame[frame["stack"] == last]
    note = f"{last} of a pair; the table has the encoder too" if paired else f"{last} alone"
    panels = {
        "gradient (L2)": [f"gradient_{block}" for block in BLOCKS],
        "activation (RMS)": [f"activation_{block}" for block in BLOCKS],
        f"update in {steps} steps": ["update"],
    }
    with drawings.style():
        sheet, axes = drawings.page(
            f"Signature of {scheme}\n",  # the second line is the legend's
            f"{small}\n{note}; gradients and activations of blocks at step 0",
            panels=len(panels),
            columns=len(panels),
            panel_height=1.9,
            sharey=False,
        )
        sheet.set_size_inches(drawings.WIDTH, HEIGHT)
        looks = {name: look(name) for name in frame["scheme"]}
        looks |= {name: replace(own, color=PALE) for name, own in looks.items() if name != scheme}
        ticks = {float(n): f"{n}-{n}" if paired else f"{n}" for n in sorted(set(frame["depth"]))}
        for ax, (title, columns) in zip(axes, panels.items(), strict=True):
            ax.set_title(title)
            drawings.depth_axis(ax, ticks)
            ax.set_xlabel("layers")
            ax.set_yscale("log")
            for name, own in reversed(looks.items()):  # the scheme itself lies on top
                for column in columns:
                    _line(ax, frame[frame["scheme"] == name], column, own)
            _name_heightless(ax, frame, columns)
            _scale(ax)
        handles = [
            *(Line2D([], [], label=n, **(o.point(filled=True) | o.line)) for n, o in looks.items()),
            *(Line2D([], [], label=f"{b} block", **_point(b, looks[scheme])) for b in BLOCKS),
        ]
        sheet.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0.0, 1 - 0.2 / HEIGHT),
            ncols=len(handles),
            fontsize=7,
            handlelength=2.8,
            columnspacing=1.2,
        )
    return sheet


def _point(block: str, own: Look) -> dict[str, Any]:
    filled, size = BLOCKS[block]
    return own.point(filled=filled, size=size)


def _line(ax: Axes, rows: pd.DataFrame, column: str, own: Look) -> None:
    values = rows[column].astype(float)
    y = values.where(values.map(lambda v: drawings.heightless(v, drawings.SMALLEST)) == "")
    ax.plot(rows["depth"], y, **own.line, linewidth=1.0)
    block = column.partition("_")[2] or "first"
    ax.plot(rows["depth"], y, **_point(block, own))


def _name_heightless(ax: Axes, frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Says in words what no log axis can show."""
    lines = [
        f"{scheme}, {column.partition('_')[2] or column} at {depth}: {why}"
        for column in columns
        for scheme, depth, value in zip(frame["scheme"], frame["depth"], frame[column], strict=True)
        if (why := drawings.heightless(math.nan if value is None else value, drawings.SMALLEST))
    ]
    ax.text(0.03, 0.03, "\n".join(lines), transform=ax.transAxes, va="bottom", fontsize=6)


def _scale(ax: Axes) -> None:
    """A decade at least, for what norms keep equal shall look equal; ticks in plain numbers."""
    low, high = ax.get_ylim()
    if high / low < 10:
        middle = math.sqrt(low * high)
        ax.set_ylim(middle / math.sqrt(10), middle * math.sqrt(10))
    if high / low < 100:
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
