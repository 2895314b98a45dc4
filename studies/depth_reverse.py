"""How deep can an encoder-decoder be trained, each scheme at the rate that suits it best?"""

from harness.analysis.figures import depth_curve, gradient_depth, rate_depth
from harness.sweep import Study

STUDY = Study(
    base="reverse.toml",
    axes={
        "scheme": ["post_norm", "b2t", "deepnorm", "pre_norm", "rezero"],
        "model.depth": [2, 6, 12, 18],
        "seed": [0, 1, 2],
    },
    tune={"optim.lr": [3e-4, 1e-3, 3e-3, 1e-2], "seeds": [100, 101]},
)
FIGURES = [depth_curve, rate_depth, gradient_depth]
