"""Which residual schemes still train as a stack gets deep? The quick study with five seeds."""

from harness.analysis.figures import depth_curve, gradient_depth, loss_traces, outcome_map
from harness.sweep import Study

STUDY = Study(
    base="quick.toml",
    axes={
        "scheme": ["post_norm", "b2t", "deepnorm", "pre_norm", "rezero"],
        "model.depth": [6, 12, 24, 48],
        "seed": [0, 1, 2, 3, 4],
    },
)
FIGURES = [depth_curve, outcome_map, gradient_depth, loss_traces]
