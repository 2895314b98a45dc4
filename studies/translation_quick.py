"""Do the claims of deep translation show in minutes? Five schemes, German to English."""

from harness.analysis.figures import figure_6, gradient_depth, outcome_map
from harness.sweep import Study

STUDY = Study(
    base="translation.toml",
    axes={
        "scheme": ["post_norm", "b2t", "deepnorm", "pre_norm", "rezero"],
        "model.depth": [6, 18],
        "train.steps": [300],
        "seed": [0],
    },
)
FIGURES = [figure_6, outcome_map, gradient_depth]
