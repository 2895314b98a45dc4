"""Do low-resource languages gain most from depth? 34 directions, six languages cut to 300 pairs."""

from harness.analysis.figures import by_resource, gradient_depth, outcome_map
from harness.sweep import Study

STUDY = Study(
    base="many_languages.toml",
    axes={
        "scheme": ["deepnorm", "pre_norm", "rezero"],
        "model.depth": [3, 6, 12],
        "seed": [0, 1],
    },
)
FIGURES = [by_resource, outcome_map, gradient_depth]
