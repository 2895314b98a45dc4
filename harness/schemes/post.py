"""Published schemes that normalise the sum. N encoder and M decoder layers.

A docstring's first line is the equation; `Differs:` says where ours departs from the source, and
no option changes that. `qkv = "fused"` is how some released code draws q, k and v: as one 3D x D
matrix, which makes their deviation 2^(-1/2) of Xavier's for three matrices.
"""

import math
from typing import Annotated, Literal

from harness.schemes.options import Range
from harness.schemes.registry import scheme
from harness.schemes.wiring import Gain, Learned, Place, Projections, Wiring, on


@scheme("arXiv:1706.03762 section 5.4; arXiv:2002.04745 section 3.1", status="paper")
def post_norm(at: Place) -> Wiring:
    """LN(x + F(x))"""
    return Wiring(norms=on("sum"))


@scheme("arXiv:2206.00330 section 4; takase/b2t_connection c8e2ad4e", status="code")
def b2t(at: Place, *, init: Literal["xavier", "released"] = "xavier") -> Wiring:
    """LN(x + F(x)), and LN(x0 + x + F(x)) in a layer's last sublayer

    `init = "released"` multiplies every matrix of a layer by depth^(-1/2), as the authors' code
    does and their equation does not. A decoder-only stack uses the encoder's equation.
    """
    gain = Gain.all(at.depth**-0.5) if init == "released" else Gain()
    return Wiring(norms=on("sum"), bypass=1.0 if at.last else 0.0, gain=gain)


@scheme("arXiv:2203.00555 Figure 2", status="paper", init="value path (8N)^(-1/4)")
def deepnorm(
    at: Place,
    *,
    alpha: bool = True,
    beta: bool = True,
    norm_lr: Literal["published", "depth"] = "published",
    encoder_constant: Literal["paper", "torchscale"] = "paper",
) -> Wiring:
    """LN(alpha x + F(x)), value path drawn with gain beta

    One stack: alpha = (2N)^(1/4), beta = (8N)^(-1/4). Encoder of a pair: 0.81 (N^4 M)^(1/16),
    0.87 (N^4 M)^(-1/16), or 1.15 for 0.87 with `encoder_constant = "torchscale"`, as released.
    Decoder of a pair: (3M)^(1/4), (12M)^(-1/4). `norm_lr = "depth"` is an idea of this repository:
    the norms' rate divided by the root of the stack's sublayers.
    Differs: torchscale scales its framework's default draws instead of Xavier's, biases too, and
    its decoder is Pre-Norm unless a flag of its own is set.
    """
    N, M = at.encoders, at.decoders
    if not at.paired:
        a, b = (2 * at.depth) ** 0.25, (8 * at.depth) ** -0.25
    elif at.stack == "encoder":
        constant = 0.87 if encoder_constant == "paper" else 1.15
        a, b = 0.81 * (N**4 * M) ** (1 / 16), constant * (N**4 * M) ** (-1 / 16)
    else:
        a, b = (3 * M) ** 0.25, (12 * M) ** -0.25
    return Wiring(
        norms=on("sum"),
        skip=a if alpha else 1.0,
        gain=Gain.value_path(b if beta else 1.0),
        norm_lr=at.sublayers**-0.5 if norm_lr == "depth" else 1.0,
    )


@scheme(
    "arXiv:2210.02414 section 2.1",
    families=("encoder", "decoder"),
    status="paper",
    init="value path (2N)^(-1/2)",
)
def deepnorm_glm(at: Place) -> Wiring:
    """LN(alpha x + F(x)), alpha = (2N)^(1/2), value path drawn with gain 1 / alpha"""
    alpha = (2 * at.depth) ** 0.5
    return Wiring(norms=on("sum"), skip=alpha, gain=Gain.value_path(1 / alpha))


@scheme(
    "arXiv:2004.08249, read in LiyuanLucasLiu/Transformer-Clinic 287abc5a; "
    "microsoft/admin-torch 8abb2098",
    status="code",
)
def admin(
    at: Place,
    *,
    init: Literal["profiled", "log", "constant"] = "profiled",
    qkv: Projections = "separate",
) -> Wiring:
    """LN(omega x + F(x)), omega learned per channel from the deviation of all sums before

    `init = "log"` and `"constant"` are admin-torch's closed forms, which read no batch: with n
    sublayers, ((n + 1) / ln(n + 1) - 1)^(1/2) and n^(1/2). `qkv = "fused"` draws q, k and v as
    the authors' code does, with 2^(-1/2) of their deviation: profiled omegas are then smaller.
    Differs: normal draws for uniform ones; where the authors run twice, one pass of the first
    training batch sets each omega; they have pairs alone, here a single stack is profiled in the
    same way.
    """
    n, gain = at.sublayers, Gain().draw(qkv)
    if init == "profiled":
        return Wiring(norms=on("sum"), skip=Learned(1.0, per="channel", profiled=True), gain=gain)
    square = (n + 1) / math.log(n + 1) - 1 if init == "log" else n
    return Wiring(norms=on("sum"), skip=Learned(square**0.5, per="channel"), gain=gain)


@scheme(
    "arXiv:1908.11365, read in bzhangGo/zero 282220a6",
    status="code",
    init="layer l: l^(-1/2)",
)
def ds_init(at: Place, *, init: Literal["paper", "released"] = "paper") -> Wiring:
    """LN(x + F(x)), every matrix of layer l drawn with gain l^(-1/2)

    `init = "released"` has l^(-1/4): the authors' code multiplies the variance by l^(-1/2).
    Differs: normal draws for uniform ones; no merged attention, a second proposal of that paper.
    """
    return Wiring(norms=on("sum"), gain=Gain.all(at.layer ** (-0.5 if init == "paper" else -0.25)))


@scheme("arXiv:2412.13795, read in pixeli99/MixLN ff458269", final_norm=True, status="code")
def mix_norm(at: Place, *, share: Annotated[float, Range(0, 1)] = 0.25) -> Wiring:
    """LN(x + F(x)) in the first `share` of the layers, x + F(LN(x)) above, and one norm at the end

    `share` times depth is rounded down: a quarter of three layers is none, which is Pre-Norm.
    Differs: the norm is the model's, the authors' is RMSNorm (`model.norm`); their code takes the
    number of layers; both stacks of a pair are divided so.
    """
    below = math.floor(share * at.depth + 1e-9)  # 0.29 of 100 is 29
    return Wiring(norms=on("sum" if at.layer <= below else "input"))


@scheme("arXiv:2601.19895v2, to section 5.7", families=("encoder", "decoder"), status="paper")
def keel(at: Place) -> Wiring:
    """LN(alpha x + F(LN(x))), alpha the number of sublayers

    The first attention is x + F(LN(x)) and the first feed-forward has alpha = 1.
    Differs: the norm is the model's; the authors' is RMSNorm (`model.norm`).
    """
    if at.layer == 1:
        return Wiring(norms=on("input", "sum") if at.last else on("input"))
    return Wiring(norms=on("input", "sum"), skip=float(at.sublayers))
