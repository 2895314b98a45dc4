"""Published schemes that normalise the sum. N encoder and M decoder layers.

A docstring's first line is the equation; `Differs:` says where ours departs from the source.
"""

from typing import Literal

from harness.schemes.registry import scheme
from harness.schemes.wiring import Gain, Place, Wiring, on


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
def deepnorm(at: Place, *, alpha: bool = True, beta: bool = True) -> Wiring:
    """LN(alpha x + F(x)), value path drawn with gain beta

    One stack: alpha = (2N)^(1/4), beta = (8N)^(-1/4). Encoder of a pair: 0.81 (N^4 M)^(1/16),
    0.87 (N^4 M)^(-1/16). Decoder of a pair: (3M)^(1/4), (12M)^(-1/4).
    """
    N, M = at.encoders, at.decoders
    if not at.paired:
        a, b = (2 * at.depth) ** 0.25, (8 * at.depth) ** -0.25
    elif at.stack == "encoder":
        a, b = 0.81 * (N**4 * M) ** (1 / 16), 0.87 * (N**4 * M) ** (-1 / 16)
    else:
        a, b = (3 * M) ** 0.25, (12 * M) ** -0.25
    return Wiring(
        norms=on("sum"), skip=a if alpha else 1.0, gain=Gain.value_path(b if beta else 1.0)
    )
