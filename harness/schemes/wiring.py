"""The vocabulary of residual schemes: a Place in the network and the Wiring a scheme gives it.

    v = N_output( F( N_input(x) * input_scale ) * output_scale )
    y = N_sum( skip * x + branch * v + bypass * x0 )     x0 is the input of the whole layer

F's activations h before its last projection may become N_inner(h) * inner_scale.

Records of numbers; must not import torch.
"""

import math
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args

from harness.errors import ConfigError, did_you_mean
from harness.fields import number

Sublayer = Literal["self", "cross", "ffn"]
Stack = Literal["encoder", "decoder"]
Site = Literal["input", "inner", "output", "sum"]
Family = Literal["encoder", "decoder", "encoder_decoder"]
Coefficient = Literal["skip", "branch", "inner_scale", "output_scale"]
Extent = Literal["sublayer", "layer", "channel", "head"]
Projections = Literal["separate", "fused"]

SITES: tuple[Site, ...] = get_args(Site)
COEFFICIENTS: tuple[Coefficient, ...] = get_args(Coefficient)
EXTENTS: tuple[Extent, ...] = get_args(Extent)
FACTORS = ("lr", "norm_lr", "eps")


@dataclass(frozen=True)
class Place:
    """One sublayer's position: all that a scheme may know."""

    sublayer: Sublayer
    stack: Stack
    layer: int  # one-based, counted from the stack's input
    encoders: int  # N, 0 in a decoder-only model
    decoders: int  # M, 0 in an encoder-only model

    @property
    def paired(self) -> bool:
        """Whether the model is an encoder-decoder, so that decoders attend to an encoder."""
        return self.encoders > 0 and self.decoders > 0

    @property
    def family(self) -> Family:
        """The kind of model: its stacks."""
        return "encoder_decoder" if self.paired else "encoder" if self.encoders else "decoder"

    @property
    def depth(self) -> int:
        """Layers of the stack this place is in."""
        return self.encoders if self.stack == "encoder" else self.decoders

    @property
    def sublayers(self) -> int:
        """Sublayers of the stack this place is in."""
        return self.depth * len(kinds(self.stack, cross=self.paired))

    @property
    def last(self) -> bool:
        """Whether this is its layer's last sublayer."""
        return self.sublayer == "ffn"


def kinds(stack: Stack, *, cross: bool) -> tuple[Sublayer, ...]:
    """A layer's sublayers, in order; `cross` says whether decoders attend to an encoder."""
    return ("self", "cross", "ffn") if cross and stack == "decoder" else ("self", "ffn")


def places(encoders: int, decoders: int, most: int = sys.maxsize) -> Iterator[Place]:
    """Every sublayer of a model, in the order in which data flows; of a stack that has more than
    `most` layers, those of as many, evenly spaced from the first to the last."""
    sizes: dict[Stack, int] = {"encoder": encoders, "decoder": decoders}
    for stack, layers in sizes.items():
        count = min(layers, most)
        for i in range(count):
            layer = 1 + i * (layers - 1) // max(1, count - 1)
            for kind in kinds(stack, cross=encoders > 0):
                yield Place(kind, stack, layer, encoders, decoders)


class Spelled:
    """A record of a scheme's numbers; refuses what is no field and no number, in one line."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        known = cls.__dataclass_fields__.keys()  # type: ignore[attr-defined]
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ConfigError(f"{cls.__name__}: unknown field {name!r}{hint}")
        return super().__new__(cls)

    def _read(self, *names: str, words: str = "a finite number") -> None:
        """Makes floats of numbers of any kind."""
        for name in names:
            value = getattr(self, name)
            if type(value) is float and math.isfinite(value):
                continue
            if (read := number(value)) is None:
                raise ConfigError(f"{type(self).__name__}: {name}: expected {words}, got {value!r}")
            object.__setattr__(self, name, float(read))


@dataclass(frozen=True)
class Learned(Spelled):
    """A trainable coefficient: one a sublayer, one that a layer shares, one a channel or a head.

    A `profiled` skip starts from what one batch shows, as `calibrate` in the model room says.
    """

    init: float
    per: Extent = "sublayer"
    profiled: bool = False

    def __post_init__(self) -> None:
        self._read("init")
        if self.per not in EXTENTS:
            hint = did_you_mean(str(self.per), EXTENTS)
            raise ConfigError(f"Learned: per: unknown value {self.per!r}{hint}")
        if not isinstance(self.profiled, bool):
            raise ConfigError(f"Learned: profiled: expected True or False, got {self.profiled!r}")


@dataclass(frozen=True)
class Gain(Spelled):
    """Factors on the Xavier-normal standard deviation, by role of the matrix."""

    q: float = 1.0
    k: float = 1.0
    v: float = 1.0
    o: float = 1.0
    up: float = 1.0
    down: float = 1.0

    def __post_init__(self) -> None:
        self._read("q", "k", "v", "o", "up", "down")

    @classmethod
    def value_path(cls, gain: float) -> "Gain":
        """The matrices that carry values; queries and keys only choose among them."""
        return cls(v=gain, o=gain, up=gain, down=gain)

    @classmethod
    def all(cls, gain: float) -> "Gain":
        return cls(gain, gain, gain, gain, gain, gain)

    def draw(self, qkv: Projections) -> "Gain":
        """This gain, or with "fused" that of q, k and v as parts of one 3D x D matrix.

        Its fans add up to 4D, those of a D x D matrix to 2D: 2^(-1/2) of Xavier's deviation.
        """
        if qkv == "separate":
            return self
        fused = 2**-0.5
        return replace(self, q=self.q * fused, k=self.k * fused, v=self.v * fused)


def on(*sites: Site) -> frozenset[Site]:
    """Sites of norms, as `Wiring.norms` has them."""
    return frozenset(sites)


@dataclass(frozen=True)
class Wiring(Spelled):
    """What a scheme gives a place: which norms are present, and every number of the equation."""

    norms: frozenset[Site] = frozenset()
    skip: float | Learned = 1.0
    branch: float | Learned = 1.0
    bypass: float = 0.0
    input_scale: float = 1.0
    inner_scale: float | Learned = 1.0
    output_scale: float | Learned = 1.0
    gain: Gain = field(default_factory=Gain)
    # Factors on the optimizer's numbers: the rate of the sublayer's matrices and biases, the rate
    # of its norms' gains and biases, and Adam's epsilon for all its parameters.
    lr: float = 1.0
    norm_lr: float = 1.0
    eps: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.norms, Set):
            raise ConfigError(f"Wiring: norms: expected sites, as on('sum'), got {self.norms!r}")
        for site in self.norms - {*SITES}:
            hint = did_you_mean(str(site), SITES)
            raise ConfigError(f"Wiring: norms: unknown site {site!r}{hint}")
        object.__setattr__(self, "norms", frozenset(self.norms))
        if not isinstance(self.gain, Gain):
            raise ConfigError(f"Wiring: gain: expected a Gain, got {self.gain!r}")
        self._read("bypass", "input_scale", *FACTORS)
        for name in COEFFICIENTS:
            value = getattr(self, name)
            if not isinstance(value, Learned):
                self._read(name, words="a finite number or a Learned")
            elif name in ("skip", "branch") and value.per == "head":
                raise ConfigError(
                    f"Wiring: {name}: only inner_scale and output_scale tell heads apart; "
                    "choose another `per`"
                )
            elif name != "skip" and value.profiled:
                raise ConfigError(f"Wiring: {name}: only a skip is profiled")
        for factor in FACTORS:
            if (value := getattr(self, factor)) < 0:
                raise ConfigError(f"Wiring: {factor}: expected a factor from 0 on, got {value!r}")

    @property
    def learned(self) -> dict[Coefficient, Learned]:
        """The trainable coefficients by name."""
        found = {name: getattr(self, name) for name in COEFFICIENTS}
        return {name: value for name, value in found.items() if isinstance(value, Learned)}


@dataclass(frozen=True)
class StackFacts:
    """What a scheme says of a whole stack, beside its sublayers."""

    final_norm: bool = False  # a norm follows the last layer
    embedding_norm: bool = False  # a norm follows the embedding and its positions
    embedding_gain: float = 1.0  # factor on the deviation that the embedding is drawn with
    dense: bool = False  # a layer's input is a learned combination of the outputs of all before
