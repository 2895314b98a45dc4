"""Residual schemes as pure functions Place -> Wiring. No torch in this room."""

from harness.schemes.digest import is_normed, wiring_digest
from harness.schemes.options import Range
from harness.schemes.registry import (
    FAMILIES,
    USUAL_SIZES,
    Scheme,
    Status,
    all_schemes,
    find,
    scheme,
)
from harness.schemes.twin import twin
from harness.schemes.wiring import (
    Coefficient,
    Family,
    Gain,
    Learned,
    Place,
    Projections,
    StackFacts,
    Wiring,
    kinds,
    on,
    places,
)

__all__ = [
    "FAMILIES",
    "USUAL_SIZES",
    "Coefficient",
    "Family",
    "Gain",
    "Learned",
    "Place",
    "Projections",
    "Range",
    "Scheme",
    "StackFacts",
    "Status",
    "Wiring",
    "all_schemes",
    "find",
    "is_normed",
    "kinds",
    "on",
    "places",
    "scheme",
    "twin",
    "wiring_digest",
]
