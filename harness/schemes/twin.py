"""Schemes that are another one at some depths: a quarter of three layers, for example, is none."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from harness.schemes.registry import USUAL_SIZES, Scheme, all_schemes
from harness.schemes.wiring import Family, Wiring, places


def twin(rule: Scheme, options: Mapping[str, Any], encoders: int, decoders: int, most: int) -> str:
    """Returns the name of the other scheme that a built-in one is in a model of these sizes, or ''.

    The other one is built-in, has its default options and is the same at every depth. It gives all
    places the same wirings and all stacks the same facts; of a deeper stack, `most` layers count.
    """
    if not rule.built_in:
        return ""
    found = [*places(encoders, decoders, most)]
    first = [at for at in found if at.layer == 1 and at.sublayer == "self"]
    for other in _constant(first[0].family):
        if (
            other is not rule
            and all(rule.stack(at, options) == other.stack(at, {}) for at in first)
            and all(rule.wire(at, options) == other.wire(at, {}) for at in found)
        ):
            return other.name
    return ""


@cache
def _constant(family: Family) -> tuple[Scheme, ...]:
    """Built-in schemes for a family that have the same wirings at one layer as at its usual six."""
    sizes = USUAL_SIZES[family]
    one = min(1, sizes[0]), min(1, sizes[1])
    return tuple(
        rule
        for rule in all_schemes().values()
        if rule.built_in
        and family in rule.families
        and _wirings(rule, *sizes) == _wirings(rule, *one)
    )


def _wirings(rule: Scheme, encoders: int, decoders: int) -> set[Wiring]:
    return {rule.wire(at, {}) for at in places(encoders, decoders)}
