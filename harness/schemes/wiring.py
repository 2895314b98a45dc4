"""The vocabulary of residual schemes: a Place in the network and the Wiring a scheme gives it.

    v = N_output( F( N_input(x) * input_scale ) )      F may hold N_inner before its last projection
    y = N_sum( skip * x + branch * v + bypass * x0 )     x0 is the input of the whole layer

Records of numbers; must not import torch.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from harness.errors import ConfigError, did_you_mean

Sublayer = Literal["self", "cross", "ffn"]
Stack = Literal["encoder", "decoder"]
Site = Literal["input", "inner", "output", "sum"]


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
    def depth(self) -> int:
        """Layers of the stack this place is in."""
        return self.encoders if self.stack == "encoder" else self.decoders

    @property
    def last(self) -> bool:
        """Whether this is its layer's last sublayer."""
        return self.sublayer == "ffn"


@dataclass(frozen=True)
class Learned:
    """A trainable coefficient: one a sublayer, one that a layer shares, or one a channel."""

    init: float
    per: Literal["sublayer", "layer", "channel"] = "sublayer"


@dataclass(frozen=True)
class Gain:
    """Factors on the Xavier-normal standard deviation, by role of the matrix."""

    q: float = 1.0
    k: float = 1.0
    v: float = 1.0
    o: float = 1.0
    up: float = 1.0
    down: float = 1.0

    @classmethod
    def value_path(cls, gain: float) -> "Gain":
        """The matrices that carry values; queries and keys only choose among them."""
        return cls(v=gain, o=gain, up=gain, down=gain)

    @classmethod
    def all(cls, gain: float) -> "Gain":
        return cls(gain, gain, gain, gain, gain, gain)


def on(*sites: Site) -> frozenset[Site]:
    return frozenset(sites)


@dataclass(frozen=True)
class Wiring:
    """What a scheme gives a place: which norms are present, and every number of the equation."""

    norms: frozenset[Site] = frozenset()
    skip: float | Learned = 1.0
    branch: float | Learned = 1.0
    bypass: float = 0.0
    input_scale: float = 1.0
    gain: Gain = field(default_factory=Gain)

    def __post_init__(self) -> None:
        for site in self.norms - set(get_args(Site)):
            raise ConfigError(f"norms: unknown site {site!r}{did_you_mean(site, get_args(Site))}")
        numbers = [self.bypass, self.input_scale, *vars(self.gain).values()]
        numbers += [c.init if isinstance(c, Learned) else c for c in (self.skip, self.branch)]
        if not all(math.isfinite(number) for number in numbers):
            raise ConfigError(f"a number of the wiring is not finite: {self}")


@dataclass(frozen=True)
class StackFacts:
    """What a scheme says of a whole stack: whether a norm follows its last layer."""

    final_norm: bool = False
