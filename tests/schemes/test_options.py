"""Options as a function's signature declares them, and values as its annotations take them."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from harness.errors import ConfigError
from harness.fields import Typed
from harness.schemes import Place, Range, Wiring, find
from harness.schemes.options import check_signature, options_of, read


def rejected(function: Callable[..., Any]) -> str:
    with pytest.raises(ConfigError) as refused:
        check_signature(function)
    return str(refused.value)


def test_an_option_that_is_not_keyword_only_is_refused() -> None:
    def plain(at: Place, beta: bool = True) -> Wiring:
        return Wiring()

    def every(at: Place, **beta: bool) -> Wiring:
        return Wiring()

    words = "beta: not keyword-only, so no option; put a bare * before it"
    assert rejected(plain) == rejected(every) == words


def test_the_place_comes_first_and_only_once() -> None:
    def nowhere(*, beta: bool = True) -> Wiring:
        return Wiring()

    def empty() -> Wiring:
        return Wiring()

    def numbered(at: int) -> Wiring:
        return Wiring()

    def twice(at: Place, *, other: Place) -> Wiring:
        return Wiring()

    words = "no place; its first parameter is one: (at: Place)"
    assert rejected(nowhere) == rejected(empty) == words
    assert rejected(numbered).startswith("at: annotated as ")
    assert rejected(twice).startswith("other: annotated as ")


def test_a_default_is_a_value_of_its_option() -> None:
    def kind(at: Place, *, kind: Literal["a", "b"] = "c") -> Wiring:  # type: ignore[assignment]
        return Wiring()

    def share(at: Place, *, share: Annotated[float, Range(0, 1)] = 2.0) -> Wiring:
        return Wiring()

    assert rejected(kind) == "kind: default: expected one of a, b, got 'c'"
    assert rejected(share) == "share: default: expected a number from 0 to 1, got 2.0"


def ranged(
    at: Place,
    *,
    below: Annotated[float, Range(high=1)] = 0.0,
    above: Annotated[int, Range(1)] = 2,
) -> Wiring:
    return Wiring()


def test_a_ranges_ends_are_in_it() -> None:
    check_signature(ranged)
    assert options_of(ranged) == {"below": 0.0, "above": 2}
    for name, end in (("below", 1), ("above", Typed("1")), ("above", np.int64(1))):
        found = read(ranged, name, end, name)
        assert (found, type(found)) == (1, float if name == "below" else int)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("below", 1.5, "a number up to 1, got 1.5"),
        ("above", 0, "an integer from 1 on, got 0"),
        ("above", Typed("0"), "an integer from 1 on, got '0'"),
        ("above", 1.5, "an integer, got 1.5"),
    ],
)
def test_a_number_beyond_its_range_is_refused(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(ranged, name, value, f"scheme_options.{name}")
    assert str(refused.value) == f"scheme_options.{name}: expected {words}"


@pytest.mark.parametrize(
    ("scheme", "option", "wrong"),
    [("mix_norm", "share", 2), ("mix_norm", "share", -0.5), ("complete_p", "base_depth", 0)],
)
def test_a_published_option_has_the_range_that_its_equation_has(
    scheme: str, option: str, wrong: float
) -> None:
    with pytest.raises(ConfigError, match=rf"^scheme_options\.{option}: expected .* from [01] "):
        find(scheme).check({option: wrong})
