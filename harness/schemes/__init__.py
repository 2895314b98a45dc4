"""Residual schemes as pure functions Place -> Wiring. No torch in this room."""

from harness.schemes.registry import Scheme, all_schemes, find, scheme
from harness.schemes.wiring import Gain, Learned, Place, StackFacts, Wiring, on

__all__ = [
    "Gain",
    "Learned",
    "Place",
    "Scheme",
    "StackFacts",
    "Wiring",
    "all_schemes",
    "find",
    "on",
    "scheme",
]
