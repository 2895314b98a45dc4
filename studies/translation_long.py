"""Do models this small learn to translate? All pairs, wider, dropout, beam search."""

from harness.analysis.figures import depth_curve, gradient_depth
from harness.sweep import Study

STUDY = Study(
    base="translation_long.toml",
    axes={"scheme": ["deepnorm", "rezero"], "model.depth": [6], "seed": [0]},
)
FIGURES = [depth_curve, gradient_depth]
