"""The vocabulary of residual schemes: a Place in the network and the Wiring a scheme gives it.

    v = N_output( F( N_input(x) * input_scale ) * output_scale )
    y = N_sum( skip * x + branch * v + bypass * x0 )     x0 is the input of the whole layer

F's activations h before its last projection may become N_inner(h) * inner_scale.

Records of numbers; must not import torch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from harness.errors import ConfigError, did_you_mean

Sublayer = Literal["self", "cross", "ffn"]
Stack = Literal["encoder", "decoder"]
Site = Literal["input", "inner", "output", "sum"]
Family = Literal["encoder", "decoder", "encoder_decoder"]
Coefficient = Literal["skip", "branch", "inner_scale", "output_scale"]


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


def places(encoders: int, decoders: int) -> Iterator[Place]:
    """Every sublayer of a model, in the order in which data flows."""
    sizes: dict[Stack, int] = {"encoder": encoders, "decoder": decoders}
    for stack, layers in sizes.items():
        for layer in range(1, layers + 1):
            for kind in kinds(stack, cross=encoders > 0):
                yield Place(kind, stack, layer, encoders, decoders)


@dataclass(frozen=True)
class Learned:
    """A trainable coefficient: one a sublayer, one that a layer shares, one a channel or a head.

    A `profiled` skip starts from what one batch shows, as `calibrate` in the model room says.
    """

    init: float
    per: Literal["sublayer", "layer", "channel", "head"] = "sublayer"
    profiled: bool = False


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
    """Sites of norms, as `Wiring.norms` has them."""
    return frozenset(sites)


@dataclass(frozen=True)
class Wiring:
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
        for site in self.norms - set(get_args(Site)):
            raise ConfigError(f"norms: unknown site {site!r}{did_you_mean(site, get_args(Site))}")
        numbers = [self.bypass, self.input_scale, *vars(self.gain).values()]
        numbers += [self.lr, self.norm_lr, self.eps]
        for name in get_args(Coefficient):
            value = getattr(self, name)
            numbers.append(value.init if isinstance(value, Learned) else value)
            if name in ("skip", "branch") and name in self.learned and value.per == "head":
                raise ConfigError(
                    f"{name}: only inner_scale and output_scale tell heads apart; "
                    "choose another `per`"
                )
            if name in self.learned and name != "skip" and value.profiled:
                raise ConfigError(f"{name}: only a skip is profiled")
        if not all(math.isfinite(number) for number in numbers):
            raise ConfigError(f"a number of the wiring is not finite: {self}")
        if min(self.lr, self.norm_lr, self.eps) < 0:
            raise ConfigError(f"lr, norm_lr and eps are factors from 0 on: {self}")

    @property
    def learned(self) -> dict[Coefficient, Learned]:
        """The trainable coefficients by name."""
        found = {name: getattr(self, name) for name in get_args(Coefficient)}
        return {name: value for name, value in found.items() if isinstance(value, Learned)}


@dataclass(frozen=True)
class StackFacts:
    """What a scheme says of a whole stack, beside its sublayers."""

    final_norm: bool = False  # a norm follows the last layer
    embedding_norm: bool = False  # a norm follows the embedding and its positions
    embedding_gain: float = 1.0  # factor on the deviation that the embedding is drawn with
    dense: bool = False  # a layer's input is a learned combination of the outputs of all before
