"""The figures, by name."""

from harness.analysis.figures.depth import depth_curve, gradient_depth, loss_traces, outcome_map
from harness.analysis.figures.initial import (
    gradient_init,
    gradient_init_down,
    gradient_init_matrices,
    stream_init,
)
from harness.analysis.figures.placement import placement
from harness.analysis.figures.plot import FIGURES, Plot, draw, figure, find, stale
from harness.analysis.figures.rates import idle_blocks, rate_depth
from harness.analysis.figures.translation import by_resource, figure_6

__all__ = [
    "FIGURES",
    "Plot",
    "by_resource",
    "depth_curve",
    "draw",
    "figure",
    "figure_6",
    "find",
    "gradient_depth",
    "gradient_init",
    "gradient_init_down",
    "gradient_init_matrices",
    "idle_blocks",
    "loss_traces",
    "outcome_map",
    "placement",
    "rate_depth",
    "stale",
    "stream_init",
]
