"""Schemes by name: the @scheme decorator, look-up, and options checked against the signature."""

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from harness.errors import ConfigError, did_you_mean
from harness.fields import number
from harness.schemes.options import check_signature, options_of, read
from harness.schemes.wiring import Family, Place, StackFacts, Wiring, places

# Where the equation and the numbers were read: the paper itself, its authors' code, somebody else's
# account of it; or nowhere, as with a scheme of one's own.
Status = Literal["paper", "code", "secondary", "own"]
FAMILIES: tuple[Family, ...] = get_args(Family)

STATUSES: tuple[Status, ...] = get_args(Status)
# Encoder and decoder layers of the models that tables show.
USUAL_SIZES: dict[Family, tuple[int, int]] = {
    "encoder": (6, 0),
    "decoder": (0, 6),
    "encoder_decoder": (6, 6),
}
REHEARSED = 1000  # layers of a stack that are tried before a run

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
    def built_in(self) -> bool:
        """Whether the scheme is this package's own."""
        return _built_in(self.function)

    @property
    def equation(self) -> str:
        """The docstring's first line."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]

    @cached_property
    def options(self) -> dict[str, Any]:
        """Keyword options and their defaults."""
        return options_of(self.function)

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options that differ from their defaults, typed; else ConfigError."""
        checked = {}
        for name, value in given.items():
            if name not in self.options:
                hint = did_you_mean(name, self.options) if self.options else " (it has no options)"
                raise ConfigError(f"scheme_options: {self.name} has no option {name!r}{hint}")
            checked[name] = read(self.function, name, value, f"scheme_options.{name}")
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
        try:
            wiring = self.function(at, **options)
            if not isinstance(wiring, Wiring):
                raise ConfigError(f"expected a Wiring, got {wiring!r}; return one")
            if at.sublayer == "ffn" and any(c.per == "head" for c in wiring.learned.values()):
                raise ConfigError("a feed-forward sublayer has no heads; choose another `per`")
        except ConfigError as error:
            raise ConfigError(f"{self._at(at, options)}: {error}") from None
        return wiring

    def stack(self, at: Place, options: Mapping[str, Any]) -> StackFacts:
        """The facts of the stack that begins at a place; an option named like a fact decides it."""
        merged = {**self.options, **options}
        named = {f.name: merged[f.name] for f in fields(StackFacts) if f.name in merged}
        gain = self.embedding_gain(at) if self.embedding_gain else self.facts.embedding_gain
        if (read := number(gain)) is None:
            raise ConfigError(
                f"{self._at(at, options)}: embedding_gain: expected a finite number, got {gain!r}"
            )
        return replace(self.facts, **{"embedding_gain": float(read), **named})

    def rehearse(
        self, encoders: int, decoders: int, options: Mapping[str, Any], most: int = REHEARSED
    ) -> str:
        """Wires every place of a model, of a deeper stack `most` layers: in words the first where
        the function raises an error of its own, else ''. ConfigError for what no model can have."""
        for at in places(encoders, decoders, most):
            try:
                self.wire(at, options)
                if at.layer == 1 and at.sublayer == "self":
                    self.stack(at, options)
            except ConfigError:
                raise
            except Exception as error:  # the function is its author's, as a study file is
                return f"{self._at(at, options)}: {one_line(error)}"
        return ""

    def _at(self, at: Place, options: Mapping[str, Any]) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        where = f"{at.stack} layer {at.layer} of {at.depth}, {at.sublayer}"
        return f"scheme {self.name!r}{f' with {given}' if given else ''}: {where}"


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
    if not isinstance(source, str):
        raise ConfigError(f'scheme: source: expected text, got {source!r}; write @scheme("...")')
    facts = StackFacts(final_norm, embedding_norm, dense=dense)

    def register(function: Callable[..., Wiring]) -> Callable[..., Wiring]:
        if not _built_in(function):
            _load_built_in()  # whose names are taken, whoever is imported first
        name = function.__name__
        if name in REGISTRY and not _same_definition(REGISTRY[name].function, function):
            raise ConfigError(f"scheme {name!r} is defined already; choose another name")
        served = families if isinstance(families, str) else tuple(families)
        rule = Scheme(name, function, source, facts, revision, embedding_gain, served, status, init)
        try:
            _check_words(rule)
            check_signature(function)
        except ConfigError as error:
            raise ConfigError(f"scheme {name!r}: {error}") from None
        REGISTRY[name] = rule
        return function

    return register


def _check_words(rule: Scheme) -> None:
    """What a declaration says beside its function."""
    if isinstance(rule.families, str) or not rule.families:
        raise ConfigError(f"families: expected a tuple of names, got {rule.families!r}")
    for family in rule.families:
        if family not in FAMILIES:
            hint = did_you_mean(str(family), FAMILIES)
            raise ConfigError(f"families: unknown family {family!r}{hint}")
    if rule.status not in STATUSES:
        hint = did_you_mean(str(rule.status), STATUSES)
        raise ConfigError(f"status: unknown status {rule.status!r}{hint}")
    for name in ("final_norm", "embedding_norm", "dense"):
        if not isinstance(value := getattr(rule.facts, name), bool):
            raise ConfigError(f"{name}: expected True or False, got {value!r}")
    if not isinstance(rule.revision, int) or rule.revision < 1:
        raise ConfigError(f"revision: expected an integer from 1 on, got {rule.revision!r}")
    if rule.embedding_gain is not None and not callable(rule.embedding_gain):
        raise ConfigError(
            f"embedding_gain: expected a function of a Place, got {rule.embedding_gain!r}"
        )


def find(name: str) -> Scheme:
    """The scheme of that name, built-in or from an entry point; ConfigError if there is none."""
    schemes = all_schemes()
    if name not in schemes:
        raise ConfigError(f"scheme: unknown scheme {name!r}{did_you_mean(name, schemes)}")
    return schemes[name]


def all_schemes() -> dict[str, Scheme]:
    """All schemes in order of definition; loads those of other packages."""
    _load_built_in()
    _load_entry_points()
    return REGISTRY


def _built_in(function: Callable[..., Wiring]) -> bool:
    return function.__module__.startswith(f"{__package__}.")


def _load_built_in() -> None:
    import harness.schemes.post
    import harness.schemes.pre
    import harness.schemes.unnormed  # noqa: F401


@cache
def _load_entry_points() -> None:
    """Plug-ins one by one; one that fails leaves nothing behind but a warning."""
    for point in sorted(entry_points(group="harness.schemes"), key=_origin):
        before = dict(REGISTRY)
        try:
            point.load()
            for name in REGISTRY.keys() - before.keys():
                _show(REGISTRY[name])
        except (Exception, SystemExit) as error:  # another package's code, as a study is the user's
            for name in REGISTRY.keys() - before.keys():
                # Another plug-in may name the same module: it is imported anew.
                sys.modules.pop(REGISTRY.pop(name).function.__module__, None)
            logging.getLogger(__name__).warning(
                "plug-in %s: %s; its schemes are left out: mend or uninstall it",
                ": ".join(_origin(point)),
                error if isinstance(error, ConfigError) else one_line(error),
            )


def _show(rule: Scheme) -> None:
    """ConfigError for a scheme that no table could show."""
    for family in rule.families:
        if flaw := rule.rehearse(*USUAL_SIZES[family], {}):
            raise ConfigError(flaw)


def _origin(point: EntryPoint) -> tuple[str, str]:
    """Distribution and module."""
    return point.dist.name if point.dist else "unknown distribution", point.value


def one_line(error: BaseException) -> str:
    """What an error of somebody else's code is, and what it says."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _same_definition(one: Callable[..., Wiring], other: Callable[..., Wiring]) -> bool:
    """A study file may be imported twice in a process; its schemes are then the same lines."""
    a, b = one.__code__, other.__code__
    return (a.co_filename, a.co_firstlineno) == (b.co_filename, b.co_firstlineno)
