"""How does a stack's gradient at initialisation depend on its depth, and whose doing is it?

Encoder-only, decoder-only, and both stacks of a pair; a pair's decoder also without its
cross-attention, so that what one sublayer does can be told from what all do.
"""

from harness.analysis.figures import (
    gradient_init,
    gradient_init_down,
    gradient_init_matrices,
    stream_init,
)
from harness.sweep import Study

STUDY = Study(
    base="init.toml",
    axes={
        "model.family": ["encoder", "decoder", "encoder_decoder"],
        "model.cross_attention": [True, False],
        "scheme": ["post_norm", "b2t", "deepnorm", "pre_norm", "rezero"],
        "model.depth": [6, 12, 24, 48, 100, 200],
        "seed": list(range(20)),
    },
)
FIGURES = [gradient_init, gradient_init_matrices, gradient_init_down, stream_init]
