"""Schemes by name: the @scheme decorator, look-up, and options checked against the signature."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Any, Literal, get_args, get_origin, get_type_hints

from harness.errors import ConfigError, did_you_mean
from harness.fields import Typed, number
from harness.schemes.wiring import Family, Place, StackFacts, Wiring

# Where the equation and the numbers were read: the paper itself, its authors' code, somebody else's
# account of it; or nowhere, as with a scheme of one's own.
Status = Literal["paper", "code", "secondary", "own"]
FAMILIES: tuple[Family, ...] = get_args(Family)

REGISTRY: dict[str, "Scheme"] = {}


@dataclass(frozen=True)
class Scheme:
    """A pure function Place -> Wiring with its source, and what it says of whole stacks."""

    name: str
    function: Callable[..., Wiring]
    source: str
    facts: StackFacts
    # Raised when the arithmetic or the initialisation changes: part of a run's identity.
    revision: int = 1
    embedding_gain: Callable[[Place], float] | None = None
    families: tuple[Family, ...] = FAMILIES
    status: Status = "own"
    init: str = "Xavier"

    @property
    def equation(self) -> str:
        """The docstring's first line."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]

    @cached_property
    def options(self) -> dict[str, Any]:
        """Keyword options and their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options that differ from their defaults, typed; else ConfigError."""
        hints = get_type_hints(self.function)
        checked = {}
        for name, value in given.items():
            if name not in self.options:
                hint = did_you_mean(name, self.options) if self.options else " (it has no options)"
                raise ConfigError(f"scheme_options: {self.name} has no option {name!r}{hint}")
            checked[name] = _typed(name, value, hints[name])
        return {name: v for name, v in sorted(checked.items()) if v != self.options[name]}

    def serve(self, family: Family) -> None:
        """ConfigError where the scheme's source does not define it for that kind of model."""
        if family not in self.families:
            raise ConfigError(
                f"scheme {self.name!r} is defined for {' and '.join(self.families)}, not for "
                f"{family!r}; choose another family or scheme"
            )

    def wire(self, at: Place, options: Mapping[str, Any]) -> Wiring:
        """The wiring of a place; ConfigError for one that no model has."""
        self.serve(at.family)
        wiring = self.function(at, **options)
        if not isinstance(wiring, Wiring):
            raise ConfigError(
                f"scheme {self.name!r}: expected a Wiring, got {wiring!r}; return one"
            )
        if at.sublayer == "ffn" and any(c.per == "head" for c in wiring.learned.values()):
            raise ConfigError(
                f"scheme {self.name!r}: a feed-forward sublayer has no heads; choose another `per`"
            )
        return wiring

    def stack(self, at: Place, options: Mapping[str, Any]) -> StackFacts:
        """The facts of the stack that begins at a place; an option named like a fact decides it."""
        merged = {**self.options, **options}
        named = {f.name: merged[f.name] for f in fields(StackFacts) if f.name in merged}
        gain = self.embedding_gain(at) if self.embedding_gain else self.facts.embedding_gain
        return replace(self.facts, **{"embedding_gain": gain, **named})


def scheme(
    source: str,
    *,
    final_norm: bool = False,
    embedding_norm: bool = False,
    embedding_gain: Callable[[Place], float] | None = None,
    dense: bool = False,
    families: tuple[Family, ...] = FAMILIES,
    status: Status = "own",
    init: str = "Xavier",
    revision: int = 1,
) -> Callable[[Callable[..., Wiring]], Callable[..., Wiring]]:
    """Registers a function Place -> Wiring under its own name.

    `source` cites id and place, `status` says what of it was read, `init` describes how weights are
    drawn. `embedding_gain` is a function of its stack's first place.
    """
    facts = StackFacts(final_norm, embedding_norm, dense=dense)

    def register(function: Callable[..., Wiring]) -> Callable[..., Wiring]:
        name = function.__name__
        if name in REGISTRY and not _same_definition(REGISTRY[name].function, function):
            raise ConfigError(f"scheme {name!r} is defined already; choose another name")
        try:
            hints = get_type_hints(function)
        except NameError as error:
            raise ConfigError(f"scheme {name!r}: an annotation is unknown: {error}") from None
        for option in inspect.signature(function).parameters.values():
            hint = hints.get(option.name)
            if hint not in (Place, bool, int, float) and get_origin(hint) is not Literal:
                what = "no annotation" if hint is None else f"annotated as {option.annotation!r}"
                raise ConfigError(
                    f"scheme {name!r}: {option.name}: {what}; say what it is: Place, bool, "
                    "int, float or Literal[...]"
                )
            if option.kind is option.KEYWORD_ONLY and option.default is option.empty:
                raise ConfigError(f"scheme {name!r}: {option.name}: no default; give it one")
        REGISTRY[name] = Scheme(
            name, function, source, facts, revision, embedding_gain, families, status, init
        )
        return function

    return register


def find(name: str) -> Scheme:
    """The scheme of that name, built-in or from an entry point; ConfigError if there is none."""
    schemes = all_schemes()
    if name not in schemes:
        raise ConfigError(f"scheme: unknown scheme {name!r}{did_you_mean(name, schemes)}")
    return schemes[name]


def all_schemes() -> dict[str, Scheme]:
    """All schemes in order of definition; loads those of other packages."""
    # These register the built-in schemes.
    import harness.schemes.post
    import harness.schemes.pre
    import harness.schemes.unnormed  # noqa: F401

    _load_entry_points()
    return REGISTRY


@cache
def _load_entry_points() -> None:
    for point in entry_points(group="harness.schemes"):
        point.load()


def _same_definition(one: Callable[..., Wiring], other: Callable[..., Wiring]) -> bool:
    """A study file may be imported twice in a process; its schemes are then the same lines."""
    a, b = one.__code__, other.__code__
    return (a.co_filename, a.co_firstlineno) == (b.co_filename, b.co_firstlineno)


def _typed(name: str, value: Any, expected: Any) -> Any:
    """The value as the annotated type; text from a command line is read as that type."""
    if expected is bool:
        if isinstance(value, Typed):
            value = {"true": True, "false": False}.get(value, value)
        if isinstance(value, bool):
            return value
        raise ConfigError(f"scheme_options.{name}: expected true or false, got {value!r}")
    if expected in (int, float):
        read = number(value)
        if read is None or (expected is int and read != int(read)):
            words = "an integer" if expected is int else "a number"
            raise ConfigError(f"scheme_options.{name}: expected {words}, got {value!r}")
        return expected(read)
    choices = get_args(expected)  # of a Literal
    for choice in choices:
        if value == choice or (isinstance(value, Typed) and value == str(choice)):
            return choice
    raise ConfigError(
        f"scheme_options.{name}: expected one of {', '.join(map(str, choices))}, got {value!r}"
    )
