"""Published schemes without norms. N encoder and M decoder layers; docstrings as in post.py."""

from harness.schemes.registry import scheme
from harness.schemes.wiring import Gain, Learned, Place, Wiring


@scheme("arXiv:2003.04887 section 3; majumderb/rezero e2c94a82", status="paper")
def rezero(at: Place, *, final_norm: bool = False) -> Wiring:
    """x + a F(x), a learned from 0, one for all sublayers of a layer

    Differs: Xavier-normal weights as for every scheme; the authors keep their framework's default.
    """
    return Wiring(branch=Learned(0.0, per="layer"))


@scheme(
    "Huang et al., ICML 2020, read in layer6ai-labs/T-Fixup cce506a5",
    embedding_gain=lambda at: (9 * at.depth) ** -0.25,
    families=("encoder_decoder",),
    status="code",
    init="value path 0.67 N^(-1/4), (9M)^(-1/4); embedding (9N)^(-1/4)",
)
def t_fixup(at: Place) -> Wiring:
    """x + F(x), value path drawn with gain 0.67 N^(-1/4), in the decoder (9M)^(-1/4)

    The embedding of a stack of n layers is drawn with gain (9n)^(-1/4), positions are not.
    Differs: normal draws for uniform ones, and gain 1 for queries and keys, which the authors'
    framework draws with 2^(-1/2); an output of its own, which the authors tie to the decoder's
    embedding.
    """
    N, M = at.encoders, at.decoders
    gain = 0.67 * N**-0.25 if at.stack == "encoder" else (9 * M) ** -0.25
    return Wiring(gain=Gain.value_path(gain))
