"""Published schemes that leave the sum as it is and normalise in the branch.

N encoder and M decoder layers; docstrings as in post.py.
"""

from harness.schemes.registry import scheme
from harness.schemes.wiring import Place, Wiring, on


@scheme("arXiv:2002.04745 section 3.1", final_norm=True, status="paper")
def pre_norm(at: Place) -> Wiring:
    """x + F(LN(x)), and one norm after the last layer"""
    return Wiring(norms=on("input"))
