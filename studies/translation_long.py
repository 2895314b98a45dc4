"""Do models this small learn to translate? All pairs, wider, dropout, beam search."""

from harness.analysis.figures import figure_6, loss_traces
from harness.sweep import Study

STUDY = Study(
    base="translation_long.toml",
    axes={"scheme": ["deepnorm", "rezero"], "model.depth": [6], "seed": [0]},
)
FIGURES = [figure_6, loss_traces]
