"""Published schemes that leave the sum as it is and normalise in the branch.

N encoder and M decoder layers; docstrings as in post.py. A placement that its authors give for one
stack holds for every sublayer of a pair, cross-attention included; depth is that of its own stack.
"""

import math
from typing import Annotated, Literal

from harness.schemes.options import Range
from harness.schemes.registry import scheme
from harness.schemes.wiring import Gain, Learned, Place, Projections, Wiring, on


@scheme("arXiv:2002.04745 section 3.1", final_norm=True, status="paper")
def pre_norm(at: Place) -> Wiring:
    """x + F(LN(x)), and one norm after the last layer"""
    return Wiring(norms=on("input"))


@scheme(
    "arXiv:2210.06423; microsoft/torchscale 0cb96955",
    final_norm=True,
    status="paper",
    init="value path (ln 2N)^(1/2)",
)
def sub_norm(at: Place, *, qkv: Projections = "separate") -> Wiring:
    """x + F(LN(x)), a second norm before F's last projection, value path drawn with gain g

    One stack: g = (ln 2N)^(1/2). Encoder of a pair: (ln(2N) ln(3M) / 3)^(1/2). Decoder of a pair:
    (ln 3M)^(1/2), but 1 in cross-attention. `Magneto` and `Sub-LN` are other names of it.
    `qkv = "fused"` draws q, k and v with 2^(-1/2) of their deviation, as torchscale's attention
    declares.
    Differs: cross-attention has the second norm too, where torchscale leaves it out; torchscale
    never calls that declaration and keeps its framework's default draws, whose deviation is
    (3 fan_in)^(-1/2), and multiplies biases by g too.
    """
    square = math.log(at.sublayers)
    if at.paired and at.stack == "encoder":
        square *= math.log(3 * at.decoders) / 3
    gain = Gain() if at.sublayer == "cross" else Gain.value_path(square**0.5)
    return Wiring(norms=on("input", "inner"), gain=gain.draw(qkv))


@scheme(
    "arXiv:2110.09456; facebookresearch/fairseq 00b64345",
    final_norm=True,
    status="code",
)
def normformer(
    at: Place,
    *,
    head_scale: Literal["paper", "released", "none"] = "paper",
    residual_scale: bool = False,
    decoders_only: bool = False,
    qkv: Projections = "separate",
) -> Wiring:
    """x + LN(F(LN(x))), heads scaled; in the feed-forward x + F(LN(x)), a norm inside F instead

    `head_scale` learns a factor from 1 for each head before the output projection; as "released",
    for as many slices of the projected output. `residual_scale` learns one from 1 for each channel
    of the feed-forward's skip. Cross-attention is Pre-Norm's. The authors' code leaves encoders as
    Pre-Norm, which is `decoders_only`, and draws q, k and v with 2^(-1/2) of their deviation, which
    is `qkv = "fused"`.
    Differs: normal draws for uniform ones; the feed-forward matrices of the authors' code keep
    their framework's default draws.
    """
    gain = Gain().draw(qkv)
    if at.sublayer == "cross" or (decoders_only and at.stack == "encoder"):
        return Wiring(norms=on("input"), gain=gain)
    if at.sublayer == "ffn":
        skip = Learned(1.0, per="channel") if residual_scale else 1.0
        return Wiring(norms=on("input", "inner"), skip=skip, gain=gain)
    heads = Learned(1.0, per="head")
    return Wiring(
        norms=on("input", "output"),
        inner_scale=heads if head_scale == "paper" else 1.0,
        output_scale=heads if head_scale == "released" else 1.0,
        gain=gain,
    )


@scheme(
    "arXiv:2501.00656 sections 3.2 to 3.4; huggingface/transformers 008f5c8c, its olmo2",
    final_norm=True,
    status="paper",
)
def reordered(at: Place) -> Wiring:
    """x + LN(F(x))

    OLMo 2 also normalises queries and keys: `model.qk_norm`.
    Differs: Xavier-normal draws, where OLMo 2 truncates N(0, 0.02); the norm is the model's.
    """
    return Wiring(norms=on("output"))


@scheme("arXiv:2105.13290, read in THUDM/CogView 169a0234", final_norm=True, status="code")
def sandwich(at: Place, *, init: Literal["xavier", "released"] = "xavier") -> Wiring:
    """x + LN(F(LN(x)))

    `init = "released"` multiplies F's last projection by (2N)^(-1/2), as the authors' code does.
    Differs: Xavier-normal draws, where the authors have N(0, 0.02).
    """
    last = (2 * at.depth) ** -0.5 if init == "released" else 1.0
    return Wiring(norms=on("input", "output"), gain=Gain(o=last, down=last))


@scheme("arXiv:2502.02732 equation 3, read in accounts of it", final_norm=True, status="secondary")
def peri_norm(at: Place, *, embedding_norm: bool = True) -> Wiring:
    """x + LN(F(LN(x))), and one norm after the embedding

    The authors call the norm after the embedding optional: `embedding_norm`.
    """
    return Wiring(norms=on("input", "output"))


@scheme("arXiv:2502.05795v5; lmsdss/LayerNorm-Scaling 3ac54dde", final_norm=True, status="paper")
def norm_scaling(at: Place) -> Wiring:
    """x + F(LN(x) / l^(1/2)), l the layer

    Differs: Xavier-normal draws of every matrix, as for every scheme; the norm is the model's, the
    authors' is RMSNorm (`model.norm`).
    """
    return Wiring(norms=on("input"), input_scale=at.layer**-0.5)


@scheme(
    "arXiv:2103.17239 section 2; facebookresearch/deit 01766691, cait_models.py",
    final_norm=True,
    status="secondary",
)
def layer_scale(at: Place) -> Wiring:
    """x + lambda F(LN(x)), lambda learned per channel from a small number that depends on depth

    0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond; the code has the latter two.
    """
    start = 0.1 if at.depth <= 18 else 1e-5 if at.depth <= 24 else 1e-6
    return Wiring(norms=on("input"), branch=Learned(start, per="channel"))


@scheme(
    "arXiv:2505.01618 Table 1; EleutherAI/nanoGPT-mup 6f8bc3bd", final_norm=True, status="paper"
)
def complete_p(
    at: Place, *, exponent: float = 1.0, base_depth: Annotated[int, Range(1)] = 2
) -> Wiring:
    """x + m^(-a) F(LN(x)), m = depth / base_depth, a = 1

    The rate of a layer's parameters is multiplied by m^(a-1) and Adam's epsilon for them by m^(-a),
    so that what suits `base_depth` layers suits more. `exponent` is a: 0.5 is depth-muP's.
    Differs: depth only; at the base's own width the paper's other factors are 1. The authors' code
    multiplies Adam's epsilon of all parameters, the embedding's too, divides scores by the head
    width instead of its root, and ties the output to the embedding.
    """
    m = at.depth / base_depth
    rate = m ** (exponent - 1)
    return Wiring(norms=on("input"), branch=m**-exponent, lr=rate, norm_lr=rate, eps=m**-exponent)


@scheme(
    "arXiv:1906.01787, read in wangqiangneu/dlcl 42c9b4a6",
    final_norm=True,
    dense=True,
    status="code",
)
def dlcl(at: Place, *, qkv: Projections = "separate") -> Wiring:
    """x + F(LN(x)), x of a layer the learned mean of embedding and normalised outputs of all before

    What follows the last layer reads such a combination too; all weights start equal. `qkv =
    "fused"` draws q, k and v as the authors' code does, with 2^(-1/2) of their deviation.
    Differs: normal draws for uniform ones; one vector of weights a combination, for a triangle of a
    square matrix.
    """
    return Wiring(norms=on("input"), gain=Gain().draw(qkv))
