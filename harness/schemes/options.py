"""The options of a scheme: keyword arguments of its function, of kinds that a config can hold."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from harness.errors import ConfigError
from harness.fields import Typed, number
from harness.schemes.wiring import Place

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Range:
    """Bounds of a number option, both included: `share: Annotated[float, Range(0, 1)] = 0.25`."""

    low: float = -math.inf
    high: float = math.inf


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword options and their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def read(function: Callable[..., Any], name: str, value: Any, field: str) -> Any:
    """The value of an option as its annotation has it; else ConfigError, under that field."""
    return _typed(field, value, get_type_hints(function, include_extras=True)[name])


def check_signature(function: Callable[..., Any]) -> None:
    """A place, and keyword options of kinds that a config can hold, each with a default."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(f"an annotation is unknown: {error}") from None
    parameters = [*inspect.signature(function).parameters.values()]
    if not parameters or parameters[0].kind not in POSITIONAL:
        raise ConfigError("no place; its first parameter is one: (at: Place)")
    place, *options = parameters
    for option in (place, *options):
        hint = hints.get(option.name)
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        known = kind in (bool, int, float) or get_origin(kind) is Literal
        if not (kind is Place if option is place else known):
            what = "no annotation" if hint is None else f"annotated as {option.annotation!r}"
            raise ConfigError(
                f"{option.name}: {what}; say what it is: Place, bool, int, float or Literal[...]"
            )
    for option in options:
        if option.kind is not option.KEYWORD_ONLY:
            raise ConfigError(
                f"{option.name}: not keyword-only, so no option; put a bare * before it"
            )
        if option.default is option.empty:
            raise ConfigError(f"{option.name}: no default; give it one")
        _typed(f"{option.name}: default", option.default, hints[option.name])


def _typed(field: str, value: Any, expected: Any) -> Any:
    """The value as the annotated type; text from a command line is read as that type."""
    bounds = Range()
    if get_origin(expected) is Annotated:
        expected, *notes = get_args(expected)
        bounds = next((note for note in notes if isinstance(note, Range)), bounds)
    if expected is bool:
        if isinstance(value, Typed):
            value = {"true": True, "false": False}.get(value, value)
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{field}: expected true or false, got {value!r}")
    if expected in (int, float):
        read = number(value)
        words = "an integer" if expected is int else "a number"
        if read is None or (expected is int and read != int(read)):
            raise ConfigError(f"{field}: expected {words}, got {value!r}")
        if not bounds.low <= read <= bounds.high:
            raise ConfigError(f"{field}: expected {words}{_within(bounds)}, got {value!r}")
        return expected(read)
    choices = get_args(expected)  # of a Literal
    for choice in choices:
        if value == choice or (isinstance(value, Typed) and value == str(choice)):
            return choice
    raise ConfigError(f"{field}: expected one of {', '.join(map(str, choices))}, got {value!r}")


def _within(bounds: Range) -> str:
    if math.isinf(bounds.low):
        return f" up to {bounds.high:g}"
    return f" from {bounds.low:g} " + ("on" if math.isinf(bounds.high) else f"to {bounds.high:g}")
