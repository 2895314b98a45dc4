"""Figures of models as they are drawn: a norm over depth, for each kind of stack."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis import drawings, laws, looks
from harness.analysis.figures.plot import caption, figure, strips
from harness.analysis.statistics import by_scheme, geometric_means
from harness.results.columns import STACKS
from harness.results.table import Table

DASHED = (0, (4, 2))


def _page(table: Table, title: str, pattern: str, label: str, *notes: str, log: bool) -> Figure:
    parts = laws.parts(table, pattern)
    small = caption(table, "line: geometric mean, dot: a seed", *notes)
    columns = min(2, len(parts))
    sheet, axes = drawings.page(title, small, panels=len(parts), columns=columns, sharey=False)
    for ax, part in zip(axes, parts, strict=True):
        if log:
            drawings.depth_axis(ax, part.panel.ticks)
        ax.set_xlabel("layers of each stack" if "pair" in part.title else "layers")
        ax.set_yscale("log")
        aside = 0.15 * min(np.diff(sorted(part.panel.ticks)), default=1.0)
        for scheme, runs in by_scheme(part.panel.runs):
            place = part.panel.schemes.index(scheme) - (len(part.panel.schemes) - 1) / 2
            x = runs["depth"] * 2.0 ** (0.05 * place) if log else runs["depth"] + aside * place
            _scheme(ax, scheme, x, runs[part.column])
        ax.set_title(part.title)
        strips([ax], [part.panel], [_heightless(part)], below=True)
    sheet.supylabel(label, fontsize=8)
    drawings.legend(sheet, parts[0].panel.schemes)
    return sheet


def _heightless(part: laws.Part) -> pd.DataFrame:
    """Runs without a place on the axis, one a depth and scheme, named by what they are."""
    runs = part.panel.runs.assign(name=_names(part.panel.runs[part.column]))
    return runs[runs["name"] != ""].drop_duplicates(["name", "depth", "scheme"])


def _names(norms: "pd.Series[float]") -> "pd.Series[str]":
    return norms.map(lambda norm: drawings.heightless(norm, drawings.SMALLEST))


def _scheme(ax: Axes, scheme: str, x: "pd.Series[float]", y: "pd.Series[float]") -> None:
    """Every seed as a dot, the geometric mean as a line with markers."""
    seen = looks.look(scheme)
    y = y.where(_names(y) == "")
    ax.plot(x, y, ".", ms=3, mew=0, color=seen.color, alpha=0.35, rasterized=True)
    means = geometric_means(y, x)
    ax.plot(means.index, means, **seen.line)
    ax.plot(means.index, means, **seen.point(filled=True, size=4))


def _fit(ax: Axes, part: laws.Part) -> None:
    """Post-Norm's factor a layer, and what papers predict for it from the first depth on."""
    post = part.panel.runs[part.panel.runs["scheme"] == "post_norm"]
    post = post[_names(post[part.column]) == ""]
    law = laws.geometric(post, part.column)
    if not law.n:  # no seed has two depths
        return
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** 0.12)  # room for the words
    words = ax.text(0.98, 0.98, f"× {law} a layer", transform=ax.transAxes, ha="right", va="top")
    words.set(fontsize=7, color=looks.look("post_norm").color)
    frame = ax.get_xlim(), ax.get_ylim()
    first = post[post["depth"] == post["depth"].min()]
    depths = np.linspace(first["depth"].iloc[0], post["depth"].max())
    start = np.log(first[part.column]).mean()
    factors = laws.predictions(part.sublayers).values()
    for factor, dashes in zip(factors, (DASHED, drawings.DOTTED), strict=True):
        predicted = np.exp(start + np.log(factor) * (depths - depths[0]))
        ax.plot(depths, predicted, color=drawings.GREY, linestyle=dashes, linewidth=1)
    ax.set(xlim=frame[0], ylim=frame[1])


def _without_matrices(runs: pd.DataFrame) -> bool:
    """Whether the matrices of every first block that has a gradient have none."""
    first = [f"grad_norm_first_{stack}" for stack in STACKS]
    has_gradient = (runs[[f"{name}_init" for name in first]] > 0).to_numpy()
    is_still = (runs.reindex(columns=[f"{name}_matrices" for name in first]) == 0).to_numpy()
    return bool(has_gradient.any() and is_still[has_gradient].all())


@figure(needs=[f"grad_norm_first_{stack}_init" for stack in STACKS])
def gradient_init(table: Table) -> Figure:
    """Gradient norm of the first block at step 0, with Post-Norm's factor a layer."""
    title = "Gradient of the first block at initialisation"
    pattern, label = "grad_norm_first_{}_init", "gradient norm of the first block (L2)"
    fitted = "×: post_norm, least squares seed by seed, 95 % interval (bootstrap from n = 10)"
    grey = "grey: dashes {}, dots {}".format(*laws.PAPERS)
    lines = [fitted, grey]
    if alone := [scheme for scheme, runs in by_scheme(table.runs) if _without_matrices(runs)]:
        lines.append(f"{', '.join(alone)}: of the coefficients alone, the matrices' gradient is 0")
    sheet = _page(table, title, pattern, label, "\n".join(lines), log=False)
    for ax, part in zip(sheet.axes, laws.parts(table, pattern), strict=True):
        _fit(ax, part)
    return sheet


@figure(needs=[f"grad_norm_first_{stack}_matrices" for stack in STACKS])
def gradient_init_matrices(table: Table) -> Figure:
    """The same of the first block's branch matrices v, o, up, down alone."""
    title = "Gradient of the first block's branch matrices at initialisation"
    label = "gradient norm of v, o, up and down (L2)"
    return _page(table, title, "grad_norm_first_{}_matrices", label, log=True)


@figure(needs=[f"grad_norm_last_{stack}_down" for stack in STACKS])
def gradient_init_down(table: Table) -> Figure:
    """Gradient norm of the last layer's second feed-forward matrix (arXiv:2002.04745 Theorem 1)."""
    title = "Gradient of the last feed-forward matrix at initialisation"
    return _page(table, title, "grad_norm_last_{}_down", "gradient norm (L2)", log=True)


@figure(needs=[f"grad_ratio_stream_{stack}" for stack in STACKS])
def stream_init(table: Table) -> Figure:
    """Norm of the gradient at the stack's input over that at its last block's output."""
    title = "What of the gradient reaches the stack's input at initialisation"
    label = "|dL/d(input)| / |dL/d(output)|"
    return _page(table, title, "grad_ratio_stream_{}", label, log=False)
