"""Laws of a quantity over depth, fitted seed by seed: their spread is the interval. No torch.

A seed draws the same first layers at every depth, so its depths belong together.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.statistics import interval

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
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


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
    slopes, residuals = [], [0.0]
    for _, rows in frame.groupby("seed"):
        if rows["x"].nunique() < 2:
            continue
        logs = np.log(rows["y"])
        slope, start = np.polyfit(rows["x"], logs, 1)
        slopes.append(float(slope))
        residuals += (logs - start - slope * rows["x"]).tolist()
    return slopes, float(np.sqrt(np.mean(np.square(residuals))))
