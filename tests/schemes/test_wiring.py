"""The vocabulary: what a place knows of itself, and what a scheme says when it says nothing."""

import dataclasses
import math

import pytest

from harness.errors import ConfigError
from harness.schemes import Gain, Learned, Place, StackFacts, Wiring, on, places


@pytest.mark.parametrize(
    ("stack", "encoders", "decoders", "paired", "depth"),
    [
        ("encoder", 6, 0, False, 6),
        ("decoder", 0, 7, False, 7),
        ("encoder", 6, 7, True, 6),
        ("decoder", 6, 7, True, 7),
    ],
)
def test_a_place_knows_its_family_and_the_depth_of_its_own_stack(
    stack: str, encoders: int, decoders: int, paired: bool, depth: int
) -> None:
    at = Place("self", stack, 1, encoders, decoders)  # type: ignore[arg-type]
    assert (at.paired, at.depth) == (paired, depth)


def test_the_feed_forward_is_a_layers_last_sublayer() -> None:
    last = {kind: Place(kind, "decoder", 1, 2, 2).last for kind in ("self", "cross", "ffn")}
    assert last == {"self": False, "cross": False, "ffn": True}


def test_the_value_path_leaves_queries_and_keys_alone() -> None:
    assert Gain.value_path(0.5) == Gain(q=1.0, k=1.0, v=0.5, o=0.5, up=0.5, down=0.5)
    assert Gain.all(0.5) == Gain(q=0.5, k=0.5, v=0.5, o=0.5, up=0.5, down=0.5)


def test_a_wiring_that_says_nothing_is_the_plain_residual_connection() -> None:
    assert Wiring() == Wiring(
        norms=frozenset(),
        skip=1.0,
        branch=1.0,
        bypass=0.0,
        input_scale=1.0,
        inner_scale=1.0,
        output_scale=1.0,
        gain=Gain(1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
        lr=1.0,
        norm_lr=1.0,
        eps=1.0,
    )
    assert StackFacts() == StackFacts(
        final_norm=False, embedding_norm=False, embedding_gain=1.0, dense=False
    )
    assert on("sum", "input") == {"input", "sum"}


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (Place("self", "encoder", 1, 1, 0), "layer"),
        (Wiring(), "skip"),
        (Gain(), "v"),
        (Learned(0.0), "init"),
        (StackFacts(), "final_norm"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_records_are_frozen_and_hashable(record: object, field: str) -> None:
    assert hash(record) == hash(dataclasses.replace(record))  # type: ignore[type-var]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, 2)


def test_a_misspelt_norm_site_and_a_number_that_is_none_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"norms: unknown site 'sums' \(did you mean 'sum'\?\)"):
        Wiring(norms=frozenset({"sums"}))  # type: ignore[arg-type]
    for wrong in (
        *({"branch": math.nan}, {"skip": Learned(math.inf)}, {"bypass": math.inf}),
        *({"lr": math.inf}, {"eps": math.nan}, {"inner_scale": Learned(math.nan, per="head")}),
    ):
        with pytest.raises(ConfigError, match="a number of the wiring is not finite"):
            Wiring(**wrong)  # type: ignore[arg-type]


def test_a_negative_factor_and_a_coefficient_out_of_place_are_refused() -> None:
    for factor in ("lr", "norm_lr", "eps"):
        with pytest.raises(ConfigError, match="lr, norm_lr and eps are factors from 0 on"):
            Wiring(**{factor: -1.0})  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="skip: only inner_scale and output_scale tell heads apart"
    ):
        Wiring(skip=Learned(1.0, per="head"))
    with pytest.raises(ConfigError, match="branch: only a skip is profiled"):
        Wiring(branch=Learned(1.0, profiled=True))


def test_the_learned_coefficients_are_named() -> None:
    heads, skip = Learned(1.0, per="head"), Learned(0.5)
    assert Wiring().learned == {}
    assert Wiring(skip=skip, branch=2.0, inner_scale=heads).learned == {
        "skip": skip,
        "inner_scale": heads,
    }


@pytest.mark.parametrize(
    ("encoders", "decoders", "family", "order"),
    [
        (2, 0, "encoder", ["1self", "1ffn", "2self", "2ffn"]),
        (0, 1, "decoder", ["1self", "1ffn"]),
        (1, 1, "encoder_decoder", ["1self", "1ffn", "1self", "1cross", "1ffn"]),
    ],
)
def test_places_are_all_sublayers_in_the_order_of_the_data(
    encoders: int, decoders: int, family: str, order: list[str]
) -> None:
    found = list(places(encoders, decoders))
    assert [f"{at.layer}{at.sublayer}" for at in found] == order
    assert {at.family for at in found} == {family}
    counts = {at.stack: sum(other.stack == at.stack for other in found) for at in found}
    assert all(at.sublayers == counts[at.stack] for at in found)
