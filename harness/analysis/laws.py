"""Laws of a quantity over depth, fitted seed by seed: their spread is the interval. No torch.

A seed draws the same first layers at every depth, so its depths belong together.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.analysis.statistics import Panel, interval, panels
from harness.results.columns import STACKS
from harness.results.table import Table

# What papers predict for the gradient at a Post-Norm stack's first block, in words.
PAPERS = ("(2/3)^(1/2) a layer (arXiv:2002.04745 app. F)", "2^(-1/2) a sublayer (arXiv:2601.19895)")


def predictions(sublayers: int) -> dict[str, float]:
    """By paper: the factor a layer of so many sublayers."""
    return dict(zip(PAPERS, ((2 / 3) ** 0.5, 2 ** (-sublayers / 2)), strict=True))


@dataclass(frozen=True)
class Law:
    """A fitted number with the 95 % interval over n seeds, and the spread that it leaves: root mean
    square of the logarithm's residuals."""

    value: float
    low: float
    high: float
    n: int
    spread: float

    def __str__(self) -> str:
        bounds = "" if math.isnan(self.low) else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.value:.3f}{bounds}"


class Part(NamedTuple):
    """A kind of stack: its name, its sublayers a layer, the panel of its runs, its column."""

    title: str
    sublayers: int
    panel: Panel
    column: str


def parts(table: Table, pattern: str) -> list[Part]:
    """One a kind of stack that has the quantity; one whose every run measured nothing but 0 has
    not, unless none has."""
    found = list(_all_parts(table, pattern))
    return [part for part in found if not _nothing(part)] or found


def _nothing(part: Part) -> bool:
    """As of an encoder that no decoder reads. Of runs that failed nothing is known."""
    runs = part.panel.runs
    known = runs[runs["outcome"].isin(["trained", "stalled"])]
    return len(known) > 0 and not (known[part.column] > 0).any()


def _all_parts(table: Table, pattern: str) -> Iterator[Part]:
    for panel in panels(table):
        cells = pd.concat([panel.runs, panel.missing])
        first = cells.iloc[0]
        pair = first["family"] == "encoder_decoder"
        crossed = _crossed(panel.runs, first)
        said = ("family ", "cross_attention ")  # in words of our own
        others = [word for word in panel.title.split(", ") if not word.startswith(said)]
        for stack in STACKS:
            if not panel.has(stack):
                continue
            title = f"{stack} of a pair" if pair else f"{stack}-only"
            cross = stack == "decoder" and crossed
            if pair and stack == "decoder" and not crossed:
                title += ", no cross-attention"
            once = panel.missing.drop_duplicates(["depth", "scheme"])
            part = replace(
                panel,
                table=replace(panel.table, missing=once),
                ticks={depth: f"{depth:g}" for depth in panel.ticks},
            )
            title = ", ".join(filter(None, [title, *others]))
            yield Part(title, 3 if cross else 2, part, pattern.format(stack))


def _crossed(runs: pd.DataFrame, first: "pd.Series[Any]") -> bool:
    """Whether decoders read their encoder: as an axis says, or what was measured of it."""
    if pd.notna(said := first.get("model.cross_attention")):
        return str(said) == "True"
    measured = runs.get("branch_mean_square_ratio_cross")
    return measured is None or runs.empty or bool(measured.notna().any())


def geometric(runs: pd.DataFrame, column: str) -> Law:
    """The factor a layer: column = start * factor ** depth."""
    slopes, spread = _slopes(runs, column, runs["depth"])
    mean, low, high = interval(slopes)
    return Law(math.exp(mean), math.exp(low), math.exp(high), len(slopes), spread)


def power(runs: pd.DataFrame, column: str) -> Law:
    """The exponent: column = start * depth ** exponent."""
    slopes, spread = _slopes(runs, column, np.log(runs["depth"]))
    return Law(*interval(slopes), len(slopes), spread)


def _slopes(runs: pd.DataFrame, column: str, x: Iterable[float]) -> tuple[list[float], float]:
    """Least squares of the logarithm over x for each seed; only values with a logarithm count, and
    seeds with two of them."""
    frame = pd.DataFrame({"seed": runs["seed"], "x": x, "y": runs[column]})
    frame = frame[np.isfinite(frame["y"]) & (frame["y"] > 0)]
    slopes: list[float] = []
    residuals: list[float] = []
    for _, rows in frame.groupby("seed"):
        if rows["x"].nunique() < 2:
            continue
        logs = np.log(rows["y"])
        slope, start = np.polyfit(rows["x"], logs, 1)
        slopes.append(float(slope))
        residuals += (logs - start - slope * rows["x"]).tolist()
    return slopes, float(np.sqrt(np.mean(np.square(residuals)))) if residuals else math.nan


def first_block(table: Table) -> pd.DataFrame:
    """By kind of stack, as text: Post-Norm's factor a layer at its first block with its interval,
    what papers predict, and (1 + s^2)^(-1/2), s^2 the measured mean square of what cross-attention
    adds over that of what it is added to."""
    rows = []
    for part in parts(table, "grad_norm_first_{}_init"):
        runs = part.panel.runs[part.panel.runs["scheme"] == "post_norm"]
        squares = runs["branch_mean_square_ratio_cross"]  # of a decoder with three sublayers
        crossed = f"{(1 + squares.mean()) ** -0.5:.3f}" if part.sublayers == 3 else ""
        rows.append(
            {
                "stack": part.title,
                "measured": str(geometric(runs, part.column)),
                **{paper: f"{rate:.3f}" for paper, rate in predictions(part.sublayers).items()},
                "(1 + s^2)^(-1/2)": crossed,
            }
        )
    return pd.DataFrame(rows)


def held_out(runs: pd.DataFrame, column: str) -> dict[str, float]:
    """Root mean square over seeds of the error of the logarithm at a seed's deepest run, predicted
    from its other depths: by both laws, and by the value at the depth before, unchanged.

    Only values with a logarithm count, and seeds with three of them.
    """
    errors = []
    for _, rows in runs[np.isfinite(runs[column]) & (runs[column] > 0)].groupby("seed"):
        rows = rows.sort_values("depth")
        depths, logs = rows["depth"].to_numpy(dtype=float), np.log(rows[column].to_numpy())
        if len(np.unique(depths)) < 3:
            continue
        line, curve = (np.polyfit(x[:-1], logs[:-1], 1) for x in (depths, np.log(depths)))
        predicted = np.polyval(line, depths[-1]), np.polyval(curve, np.log(depths[-1])), logs[-2]
        errors.append(np.array(predicted) - logs[-1])
    found = np.sqrt(np.mean(np.square(errors), axis=0)) if errors else [math.nan] * 3
    return dict(zip(("geometric", "power law", "unchanged"), map(float, found), strict=True))


def extrapolated(table: Table) -> pd.DataFrame:
    """By kind of stack, as text: Post-Norm's first-block gradient at its first and last depth
    (geometric mean, and deviation of the logarithm over seeds), and the errors of `held_out`."""
    rows = []
    for part in parts(table, "grad_norm_first_{}_init"):
        runs = part.panel.runs[part.panel.runs["scheme"] == "post_norm"]
        logs = np.log(runs[part.column].where(runs[part.column] > 0)).groupby(runs["depth"])
        means, spreads = np.exp(logs.mean()), logs.std()
        span = f"{means.index[0]:g} to {means.index[-1]:g} layers"
        errors = held_out(runs, part.column)
        rows.append(
            {
                "stack": part.title,
                f"geometric mean, {span}": f"{means.iloc[0]:#.2g} to {means.iloc[-1]:#.2g}",
                f"scatter, {span}": f"{spreads.iloc[0]:.2f} to {spreads.iloc[-1]:.2f}",
                **{f"error: {law}": f"{error:.2f}" for law, error in errors.items()},
            }
        )
    return pd.DataFrame(rows)
