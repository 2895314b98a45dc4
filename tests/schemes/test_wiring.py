"""The vocabulary: what a place knows of itself, and what a scheme says when it says nothing."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
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


@pytest.mark.parametrize("width", [8, 512])
def test_a_fused_matrix_has_smaller_queries_keys_and_values_and_nothing_else(width: int) -> None:
    def xavier(rows: int, columns: int) -> float:
        return math.sqrt(2 / (rows + columns))

    fused = xavier(3 * width, width) / xavier(width, width)
    given = Gain(q=1.0, k=2.0, v=0.5, o=0.25, up=3.0, down=4.0)
    found = given.draw("fused")
    assert (found.q, found.k, found.v) == pytest.approx((fused, 2 * fused, 0.5 * fused), rel=1e-12)
    assert (found.o, found.up, found.down) == (0.25, 3.0, 4.0)
    assert given.draw("separate") is given


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


NUMBER = "expected a finite number"
MORE = "expected a finite number or a Learned"


@pytest.mark.parametrize(
    ("record", "given", "words"),
    [
        (Wiring, {"brnch": 2}, "Wiring: unknown field 'brnch' (did you mean 'branch'?)"),
        (Gain, {"value": 2}, "Gain: unknown field 'value' (known: down, k, o, q, up, v)"),
        (Learned, {"int": 2.0}, "Learned: unknown field 'int' (did you mean 'init'?)"),
        (Wiring, {"norms": "sum"}, "Wiring: norms: expected sites, as on('sum'), got 'sum'"),
        (Wiring, {"norms": ["sum"]}, "Wiring: norms: expected sites, as on('sum'), got ['sum']"),
        (
            Wiring,
            {"norms": {"sums"}},
            "Wiring: norms: unknown site 'sums' (did you mean 'sum'?)",
        ),
        (
            Wiring,
            {"norms": {2}},
            "Wiring: norms: unknown site 2 (known: inner, input, output, sum)",
        ),
        (Wiring, {"branch": abs}, f"Wiring: branch: {MORE}, got <built-in function abs>"),
        (Wiring, {"branch": "2"}, f"Wiring: branch: {MORE}, got '2'"),
        (Wiring, {"branch": True}, f"Wiring: branch: {MORE}, got True"),
        (Wiring, {"branch": 1j}, f"Wiring: branch: {MORE}, got 1j"),
        (Wiring, {"branch": math.nan}, f"Wiring: branch: {MORE}, got nan"),
        (Wiring, {"skip": 10**400}, f"Wiring: skip: {MORE}, got {10**400}"),
        (Wiring, {"bypass": math.inf}, f"Wiring: bypass: {NUMBER}, got inf"),
        (Wiring, {"bypass": Learned(1.0)}, f"Wiring: bypass: {NUMBER}, got {Learned(1.0)}"),
        (Wiring, {"gain": 2.0}, "Wiring: gain: expected a Gain, got 2.0"),
        (Wiring, {"eps": math.nan}, f"Wiring: eps: {NUMBER}, got nan"),
        (Wiring, {"lr": -1.0}, "Wiring: lr: expected a factor from 0 on, got -1.0"),
        (Wiring, {"norm_lr": -1}, "Wiring: norm_lr: expected a factor from 0 on, got -1.0"),
        (Wiring, {"eps": -1.0}, "Wiring: eps: expected a factor from 0 on, got -1.0"),
        (
            Wiring,
            {"skip": Learned(1.0, per="head")},
            "Wiring: skip: only inner_scale and output_scale tell heads apart; "
            "choose another `per`",
        ),
        (
            Wiring,
            {"branch": Learned(1.0, profiled=True)},
            "Wiring: branch: only a skip is profiled",
        ),
        (
            Learned,
            {"init": 0.1, "per": "channels"},
            "Learned: per: unknown value 'channels' (did you mean 'channel'?)",
        ),
        (Learned, {"init": "0.1"}, f"Learned: init: {NUMBER}, got '0.1'"),
        (Learned, {"init": math.inf}, f"Learned: init: {NUMBER}, got inf"),
        (
            Learned,
            {"init": 1.0, "profiled": "yes"},
            "Learned: profiled: expected True or False, got 'yes'",
        ),
        (Gain, {"v": math.nan}, f"Gain: v: {NUMBER}, got nan"),
    ],
)
def test_what_is_no_field_or_no_value_of_one_is_refused_by_name(
    record: type, given: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        record(**given)
    assert str(refused.value) == words


@pytest.mark.parametrize("two", [2, np.int64(2), np.float32(2), np.float64(2), Fraction(4, 2)])
def test_a_number_of_any_kind_is_a_float(two: float) -> None:
    found = Wiring(skip=two, bypass=two, branch=Learned(two), gain=Gain(v=two), lr=two)
    assert found == Wiring(skip=2.0, bypass=2.0, branch=Learned(2.0), gain=Gain(v=2.0), lr=2.0)
    assert isinstance(found.branch, Learned)
    for number in (found.skip, found.bypass, found.branch.init, found.gain.v, found.lr):
        assert type(number) is float


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


def test_places_of_a_deep_stack_are_spread_from_the_first_layer_to_the_last() -> None:
    found = [at.layer for at in places(0, 1_000_000, 4)]
    assert found == [1, 1, 333334, 333334, 666667, 666667, 1_000_000, 1_000_000]
    assert list(places(3, 5, 5)) == list(places(3, 5))
    assert [at.layer for at in places(9, 0, 1)] == [1, 1]
