"""Which residual schemes still translate as both stacks get deep? German to English, 600 steps."""

from harness.analysis.figures import figure_6, gradient_depth, outcome_map
from harness.sweep import Study

STUDY = Study(
    base="translation.toml",
    axes={
        # The five of every study, then those of DeepNet's Table 1 (arXiv:2203.00555).
        "scheme": [
            *("post_norm", "b2t", "deepnorm", "pre_norm", "rezero"),
            *("ds_init", "admin", "t_fixup", "dlcl", "normformer"),
        ],
        "model.depth": [6, 12, 18],
        "seed": [0, 1, 2],
    },
)
FIGURES = [figure_6, outcome_map, gradient_depth]
