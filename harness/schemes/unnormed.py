"""Published schemes without norms. N encoder and M decoder layers; docstrings as in post.py."""

from harness.schemes.registry import scheme
from harness.schemes.wiring import Learned, Place, Wiring


@scheme("arXiv:2003.04887 section 3; majumderb/rezero e2c94a82", status="paper")
def rezero(at: Place, *, final_norm: bool = False) -> Wiring:
    """x + a F(x), a learned from 0, one for all sublayers of a layer

    Differs: Xavier-normal weights as for every scheme; the authors keep their framework's default.
    """
    return Wiring(branch=Learned(0.0, per="layer"))
