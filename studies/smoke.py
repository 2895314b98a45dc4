"""Does the machine work from end to end? Two schemes, two shallow depths, half a minute."""

from harness.analysis.figures import depth_curve, gradient_depth, loss_traces, outcome_map
from harness.sweep import Study

STUDY = Study(
    base="smoke.toml",
    axes={"scheme": ["post_norm", "deepnorm"], "model.depth": [2, 4], "seed": [0, 1]},
)
FIGURES = [depth_curve, outcome_map, gradient_depth, loss_traces]
