"""Which residual scheme ends lowest at one depth, with LayerNorm and with RMSNorm, each at the rate
that suits it best? And does it use its blocks?

Every scheme that serves a decoder alone; T-Fixup is made for pairs.
"""

from harness.analysis.figures import idle_blocks, placement, rate_depth
from harness.sweep import Study

STUDY = Study(
    base="placement.toml",
    axes={
        "scheme": [
            *("post_norm", "b2t", "deepnorm", "deepnorm_glm", "admin", "ds_init", "mix_norm"),
            *("keel", "pre_norm", "sub_norm", "normformer", "reordered", "sandwich", "peri_norm"),
            *("norm_scaling", "layer_scale", "complete_p", "dlcl", "rezero"),
        ],
        "model.norm": ["layernorm", "rmsnorm"],
        "seed": [0, 1, 2],
    },
    tune={"optim.lr": [3e-4, 1e-3, 3e-3, 1e-2], "seeds": [100, 101]},
)
FIGURES = [placement, rate_depth, idle_blocks]
