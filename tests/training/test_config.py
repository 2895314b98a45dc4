"""The text of every refusal, the values that a field takes, and the identity of a run."""

import copy
import csv
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import harness.training.config as module
from harness.errors import ConfigError
from harness.fields import Typed
from harness.schemes import Place, Wiring, scheme
from harness.schemes.registry import REGISTRY
from harness.sweep.study import load as load_study
from harness.training.config import Config, canonical, parse, read_toml, with_value

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
NAN, INF = math.nan, math.inf
ABSENT = object()

PLAIN: dict[str, Any] = {
    "scheme": "deepnorm",
    "seed": 1,
    "model": {"family": "encoder_decoder", "depth": 2, "width": 16, "heads": 2, "ffn": 32},
    "data": {"name": "reverse"},
    "optim": {"lr": 0.001},
    "train": {"steps": 10, "batch": 4, "length": 8},
}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """PLAIN with these values at these dotted paths; ABSENT takes a field away."""
    table = copy.deepcopy(PLAIN)
    for path, value in changes.items():
        *sections, field = path.split(".")
        inner = table
        for section in sections:
            inner = inner.setdefault(section, {})
        if value is ABSENT:
            del inner[field]
        else:
            inner[field] = value
    return table


def load(changes: dict[str, Any] | None = None) -> Config:
    return parse(changed(changes or {}), "configs/x.toml")


def refusal(changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as refused:
        load(changes)
    return str(refused.value)


INTEGER = "expected a positive integer, got"
SHARE = "expected a number from 0 to below 1, got"
SWITCH = "expected true or false, got"

REFUSALS: list[tuple[dict[str, Any], str]] = [
    # A number that is none, or not of the field's kind.
    ({"model.depth": "12x"}, f"model.depth: {INTEGER} '12x'"),
    ({"model.depth": Typed("12x")}, f"model.depth: {INTEGER} '12x'"),
    ({"model.depth": Typed("")}, f"model.depth: {INTEGER} ''"),
    ({"model.depth": "64"}, f"model.depth: {INTEGER} '64'"),
    ({"model.depth": True}, f"model.depth: {INTEGER} True"),
    ({"model.depth": 0}, f"model.depth: {INTEGER} 0"),
    ({"model.depth": -3}, f"model.depth: {INTEGER} -3"),
    ({"model.depth": 2.5}, f"model.depth: {INTEGER} 2.5"),
    ({"model.depth": Typed("2.5")}, f"model.depth: {INTEGER} '2.5'"),
    ({"model.depth": NAN}, f"model.depth: {INTEGER} nan"),
    ({"model.depth": INF}, f"model.depth: {INTEGER} inf"),
    ({"model.depth": Typed("inf")}, f"model.depth: {INTEGER} 'inf'"),
    ({"model.depth": [2]}, f"model.depth: {INTEGER} [2]"),
    ({"train.steps": -1}, "train.steps: expected an integer from 0 on, got -1"),
    ({"probe.window": 0}, f"probe.window: {INTEGER} 0"),
    ({"data.symbols": "8"}, f"data.symbols: {INTEGER} '8'"),
    ({"seed": -1}, "seed: expected an integer from 0 on, got -1"),
    ({"seed": False}, "seed: expected an integer from 0 on, got False"),
    ({"optim.warmup_steps": -1}, "optim.warmup_steps: expected an integer from 0 on, got -1"),
    ({"optim.lr": NAN}, "optim.lr: expected a positive number, got nan"),
    ({"optim.lr": Typed("nan")}, "optim.lr: expected a positive number, got 'nan'"),
    ({"optim.lr": INF}, "optim.lr: expected a positive number, got inf"),
    ({"optim.lr": 0}, "optim.lr: expected a positive number, got 0"),
    ({"optim.lr": -0.001}, "optim.lr: expected a positive number, got -0.001"),
    ({"optim.lr": "1e-3"}, "optim.lr: expected a positive number, got '1e-3'"),
    ({"optim.lr": True}, "optim.lr: expected a positive number, got True"),
    ({"optim.clip": -1.0}, "optim.clip: expected a number from 0 on, got -1.0"),
    ({"model.dropout": 1.0}, f"model.dropout: {SHARE} 1.0"),
    ({"optim.label_smoothing": -0.1}, f"optim.label_smoothing: {SHARE} -0.1"),
    # A switch.
    ({"model.cross_attention": "false"}, f"model.cross_attention: {SWITCH} 'false'"),
    ({"model.cross_attention": 0}, f"model.cross_attention: {SWITCH} 0"),
    ({"model.cross_attention": Typed("False")}, f"model.cross_attention: {SWITCH} 'False'"),
    ({"model.cross_attention": Typed("0")}, f"model.cross_attention: {SWITCH} '0'"),
    ({"model.cross_attention": [True]}, f"model.cross_attention: {SWITCH} [True]"),
    ({"probe.skip_blocks": 1.0}, f"probe.skip_blocks: {SWITCH} 1.0"),
    ({"probe.skip_blocks": Typed("yes")}, f"probe.skip_blocks: {SWITCH} 'yes'"),
    ({"probe.skip_blocks": Typed("")}, f"probe.skip_blocks: {SWITCH} ''"),
    ({"probe.skip_blocks": None}, f"probe.skip_blocks: {SWITCH} None"),
    # Adam's betas.
    ({"optim.betas": [0.9]}, "optim.betas: expected a list of two numbers, got [0.9]"),
    (
        {"optim.betas": [0.9, 0.98, 0.99]},
        "optim.betas: expected a list of two numbers, got [0.9, 0.98, 0.99]",
    ),
    ({"optim.betas": 0.9}, "optim.betas: expected a list of two numbers, got 0.9"),
    (
        {"optim.betas": Typed("0.9,0.98")},
        "optim.betas: expected a list of two numbers, got '0.9,0.98'",
    ),
    ({"optim.betas": [0.9, "0.98"]}, f"optim.betas.1: {SHARE} '0.98'"),
    ({"optim.betas": [NAN, 0.98]}, f"optim.betas.0: {SHARE} nan"),
    ({"optim.betas": [0.9, 1]}, f"optim.betas.1: {SHARE} 1"),
    ({"optim.betas": [True, 0.98]}, f"optim.betas.0: {SHARE} True"),
    # A name that is not known: beside the right one, and in its place.
    ({"model.dept": 2}, "model: unknown field 'dept' (did you mean 'depth'?)"),
    (
        {"model.depth": ABSENT, "model.dept": 2},
        "model: unknown field 'dept' (did you mean 'depth'?)",
    ),
    ({"optim.lr": ABSENT, "optim.lrr": 1}, "optim: unknown field 'lrr' (did you mean 'lr'?)"),
    ({"sheme": "deepnorm"}, "unknown field 'sheme' (did you mean 'scheme'?)"),
    (
        {"scheme": ABSENT, "sheme": "deepnorm"},
        "unknown field 'sheme' (did you mean 'scheme'?)",
    ),
    ({"optim": ABSENT, "optin": {}}, "unknown field 'optin' (did you mean 'optim'?)"),
    (
        {"probe.zzz": 1},
        "probe: unknown field 'zzz' (known: skip_blocks, update_steps, window)",
    ),
    ({"data.symbol": 8}, "data: unknown field 'symbol' (did you mean 'symbols'?)"),
    # A field that is not there.
    ({"model.depth": ABSENT}, "model.depth: missing; it has no default, so name a value"),
    ({"seed": ABSENT}, "seed: missing; it has no default, so name a value"),
    ({"scheme": ABSENT}, "scheme: missing; it has no default, so name a value"),
    ({"optim": ABSENT}, "optim: missing; it has no default, so name a value"),
    ({"data.name": ABSENT}, "data.name: missing; name a task"),
    ({"data.name": "text"}, "data.path: missing; it has no default, so name a value"),
    # A value that is no table, or no text.
    ({"model": 3}, "model: expected a table, got 3"),
    ({"data": "reverse"}, "data: expected a table, got 'reverse'"),
    ({"scheme_options": 3}, "scheme_options: expected a table, got 3"),
    ({"scheme_options": Typed("{a}")}, "scheme_options: expected a JSON table, got '{a}'"),
    ({"scheme": 5}, "scheme: expected text, got 5"),
    ({"data": {"name": "text", "path": 5}}, "data.path: expected text, got 5"),
    # A choice that is none.
    ({"scheme": "deepnrom"}, "scheme: unknown scheme 'deepnrom' (did you mean 'deepnorm'?)"),
    ({"data.name": "revers"}, "data.name: unknown task 'revers' (did you mean 'reverse'?)"),
    (
        {"data.name": "zzz"},
        "data.name: unknown task 'zzz' (known: code_text, recall, reverse, text, translation)",
    ),
    ({"model.family": "decodr"}, "model.family: unknown value 'decodr' (did you mean 'decoder'?)"),
    ({"optim.name": "Adam"}, "optim.name: unknown value 'Adam' (did you mean 'adam'?)"),
    (
        {"optim.schedule": "cosine"},
        "optim.schedule: unknown value 'cosine' (known: constant, inverse_sqrt)",
    ),
    (
        {"train.held_out": "test"},
        "train.held_out: unknown value 'test' (known: tuning, valid)",
    ),
    ({"train.precision": 32}, "train.precision: unknown value 32 (did you mean '32'?)"),
    # Options of a scheme.
    (
        {"scheme_options": {"bta": False}},
        "scheme_options: deepnorm has no option 'bta' (did you mean 'beta'?)",
    ),
    (
        {"scheme": "pre_norm", "scheme_options": {"beta": False}},
        "scheme_options: pre_norm has no option 'beta' (it has no options)",
    ),
    ({"scheme_options": {"beta": 1}}, "scheme_options.beta: expected true or false, got 1"),
    (
        {"scheme_options": {"beta": "no"}},
        "scheme_options.beta: expected true or false, got 'no'",
    ),
    (
        {"scheme_options": {"beta": "false"}},
        "scheme_options.beta: expected true or false, got 'false'",
    ),
    (
        {"scheme": "b2t", "scheme_options": {"init": "Xavier"}},
        "scheme_options.init: expected one of xavier, released, got 'Xavier'",
    ),
    # Fields that do not go together.
    (
        {"scheme": "keel"},
        "model.family: scheme 'keel' is defined for encoder and decoder, not for "
        "'encoder_decoder'; choose another family or scheme",
    ),
    (
        {"scheme": "t_fixup", "model.family": "decoder"},
        "model.family: scheme 't_fixup' is defined for encoder_decoder, not for 'decoder'; "
        "choose another family or scheme",
    ),
    ({"model.heads": 3}, "model.heads: 3 does not divide model.width 16; choose a divisor"),
    (
        {"model.family": "encoder", "data.name": "recall"},
        "model.family: task 'recall' needs encoder_decoder or decoder, got 'encoder'",
    ),
    (
        {"data.name": "code_text"},
        "model.family: task 'code_text' needs decoder or encoder, got 'encoder_decoder'",
    ),
    (
        {"train.average": 5, "train.validate_every": 3},
        "train.average: expected at most 4, the validations of 10 steps, got 5; lower it or "
        "train.validate_every",
    ),
    (
        {"train.average": 2, "train.validate_every": 100},
        "train.average: expected at most 1, the validations of 10 steps, got 2; lower it or "
        "train.validate_every",
    ),
    (
        {"scheme": "mix_norm", "scheme_options": {"share": 2}},
        "scheme_options.share: expected a number from 0 to 1, got 2",
    ),
    (
        {"model.family": "decoder", "model.decoder_depth": 3},
        "model.decoder_depth: only an encoder_decoder has it, got family 'decoder'; "
        "set model.depth",
    ),
]


@pytest.mark.parametrize(
    ("changes", "message"), REFUSALS, ids=[f"{i}-{m[:40]}" for i, (_, m) in enumerate(REFUSALS)]
)
def test_refusal_names_file_field_value_and_remedy(changes: dict[str, Any], message: str) -> None:
    assert refusal(changes) == f"configs/x.toml: {message}"


@pytest.mark.parametrize(
    "changes",
    [
        {"mod\nel": 1},
        {"model.de\npth": 1},
        {"scheme": "deep\nnorm"},
        {"data.name": "re\nverse"},
        {"model.family": "dec\noder"},
        {"scheme_options": {"be\nta": 1}},
        {"model.depth": "1\n2"},
    ],
)
def test_refusal_is_one_line_even_if_the_input_is_not(changes: dict[str, Any]) -> None:
    assert "\n" not in refusal(changes)


FIELDS = [
    *("scheme", "scheme_options", "scheme_options.beta", "seed", "model", "data", "data.name"),
    *("data.symbols", "model.family", "model.depth", "model.decoder_depth", "model.heads"),
    *("model.dropout", "optim.name", "optim.lr", "optim.betas", "optim.eps", "train"),
    *("train.precision", "probe", "probe.window", "nothing", "model.nothing"),
    *("model.cross_attention", "probe.skip_blocks"),
]
TEXTS = st.sampled_from(["", "3", "-0", "1e999", "nan", "[0.9, 0.9]", "{}", "[NaN, 1]", "true"])
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), TEXTS,
    TEXTS.map(Typed), st.sampled_from([10**400, -(10**400), 1e308, 5e-324]),
)  # fmt: skip
VALUES = st.one_of(
    LEAVES, st.lists(LEAVES, max_size=3), st.dictionaries(st.text(max_size=3), LEAVES, max_size=2)
)


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(path=st.sampled_from(FIELDS), value=VALUES)
def test_any_value_is_taken_or_refused_with_its_file(path: str, value: Any) -> None:
    try:
        config = load({path: value})
    except ConfigError as refused:
        assert str(refused).startswith("configs/x.toml: ")
    else:
        again = parse(config.model_dump(exclude_none=True), "again")
        assert again.run_id == config.run_id


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), Typed("9" * 400)], ids=["large", "small", "typed"]
)
def test_a_number_beyond_floats_is_refused(value: Any) -> None:
    assert refusal({"optim.lr": value}).startswith(
        "configs/x.toml: optim.lr: expected a positive number, got "
    )


@pytest.mark.parametrize("value", [NAN, INF, Typed("nan"), "three"])
@pytest.mark.parametrize("kind", [int, float])
def test_an_option_that_is_a_number_refuses_what_is_none(kind: type, value: Any) -> None:
    def numbered(at: Place, *, power=1) -> Wiring:  # type: ignore[no-untyped-def]
        return Wiring()

    numbered.__annotations__["power"] = kind
    scheme("none")(numbered)
    try:
        message = refusal({"scheme": "numbered", "scheme_options": {"power": value}})
    finally:
        del REGISTRY["numbered"]
    words = "an integer" if kind is int else "a number"
    got = repr(str(value)) if isinstance(value, str) else repr(value)
    assert message == f"configs/x.toml: scheme_options.power: expected {words}, got {got}"


def test_an_integer_field_takes_an_integer_written_as_a_float() -> None:
    depth = load({"model.depth": 64.0}).model.depth
    assert (depth, type(depth)) == (64, int)


def test_fields_left_out_hold_the_values_the_design_gives_them() -> None:
    config = load()
    assert (config.optim.name, config.optim.betas, config.optim.eps) == ("adam", (0.9, 0.98), 1e-8)
    assert (config.probe.window, config.probe.update_steps) == (100, 10)
    assert (config.model.norm, config.train.precision) == ("layernorm", "32")


def test_a_config_does_not_change() -> None:
    with pytest.raises(Exception, match="frozen"):
        load().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, (2, 2)),
        ({"model.decoder_depth": 5}, (2, 5)),
        ({"model.family": "decoder"}, (0, 2)),
        ({"model.family": "encoder", "data.name": "code_text"}, (2, 0)),
    ],
)
def test_depth_counts_the_layers_of_each_stack(
    changes: dict[str, Any], layers: tuple[int, int]
) -> None:
    model = load(changes).model
    assert (model.encoders, model.decoders) == layers


# Identity


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"model.depth": 64}, {"model.depth": Typed("64")}),
    ({"model.depth": 64}, {"model.depth": Typed("64.0")}),
    ({"model.depth": 64}, {"model.depth": Typed("064")}),
    ({"model.depth": 64}, {"model.depth": 64.0}),
    ({"optim.lr": 0.001}, {"optim.lr": Typed("1e-3")}),
    ({"optim.lr": 0.001}, {"optim.lr": Typed("0.001")}),
    ({"optim.lr": 1}, {"optim.lr": 1.0}),
    ({"optim.weight_decay": 0}, {"optim.weight_decay": -0.0}),
    ({}, {"optim.betas": Typed("[0.9, 0.98]")}),
    ({}, {"optim.betas": [0.9, 0.98]}),
    ({}, {"model.decoder_depth": 2}),
    ({}, {"model.qk_norm": False}),
    ({}, {"model.decoder_depth": Typed("2")}),
    ({}, {"scheme": Typed("deepnorm"), "model.family": Typed("encoder_decoder")}),
    ({}, {"data.name": Typed("reverse"), "train.precision": Typed("32")}),
    ({}, {"scheme_options": {}}),
    ({}, {"scheme_options": {"alpha": True, "beta": True}}),
    ({}, {"scheme_options": {"beta": Typed("true")}}),
    ({}, {"scheme_options": Typed('{"beta": true}')}),
    ({"scheme_options": {"beta": False}}, {"scheme_options.beta": Typed("false")}),
    (
        {"scheme_options": {"alpha": False, "beta": False}},
        {"scheme_options": {"beta": False, "alpha": False}},
    ),
    ({"scheme": "b2t"}, {"scheme": "b2t", "scheme_options": {"init": "xavier"}}),
    ({}, {"probe": {}, "optim.name": "adam", "optim.eps": 1e-8}),
    ({}, {"train.held_out": "valid"}),
    ({}, {"model.cross_attention": True}),
    ({}, {"model.cross_attention": Typed("true")}),
    ({"model.cross_attention": False}, {"model.cross_attention": Typed("false")}),
    ({}, {"probe.skip_blocks": False}),
    ({}, {"probe.skip_blocks": Typed("false")}),
    ({"probe.skip_blocks": True}, {"probe.skip_blocks": Typed("true")}),
    # A scheme without norms has none whose kind could be another.
    ({"scheme": "rezero"}, {"scheme": "rezero", "model.norm": "rmsnorm"}),
    ({"scheme": "t_fixup"}, {"scheme": "t_fixup", "model.norm": Typed("rmsnorm")}),
    # A stack without partner has no cross-attention to leave out.
    ({"model.family": "decoder"}, {"model.family": "decoder", "model.cross_attention": False}),
    ({"model.family": "decoder"}, {"model.family": "decoder", "model.cross_attention": True}),
    ({"model.family": "encoder"}, {"model.family": "encoder", "model.cross_attention": False}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_spellings_are_one_cell(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert load(one).run_id == load(other).run_id


@pytest.mark.parametrize(
    "changes",
    [
        {"optim.lr": 0.001000001},
        {"seed": 2},
        {"scheme": "post_norm"},
        {"scheme_options": {"beta": False}},
        {"model.decoder_depth": 3},
        {"model.qk_norm": True},
        {"data.symbols": 17},
        {"optim.betas": [0.98, 0.9]},
        {"train.accumulation": 2},
        {"probe.window": 99},
        {"model.cross_attention": False},
        {"probe.skip_blocks": True},
        {"train.held_out": "tuning"},
    ],
)
def test_another_value_is_another_cell(changes: dict[str, Any]) -> None:
    assert load(changes).run_id != load().run_id


@pytest.mark.parametrize(
    "changes",
    [
        {"scheme": "pre_norm"},
        {"scheme": "post_norm"},
        {"scheme": "dlcl", "model.family": "decoder"},
        {"scheme": "rezero", "model.qk_norm": True},
        {"scheme": "rezero", "scheme_options": {"final_norm": True}},
    ],
)
def test_two_kinds_of_norm_are_two_cells_where_there_is_a_norm(changes: dict[str, Any]) -> None:
    other = load(changes | {"model.norm": "rmsnorm"})
    assert other.model.norm == other.at("model.norm") == "rmsnorm"
    assert other.run_id != load(changes).run_id


def test_a_norm_that_no_block_has_is_told_as_the_default() -> None:
    config = load({"scheme": "rezero", "model.norm": "rmsnorm"})
    assert config.model.norm == config.at("model.norm") == "layernorm"
    assert config == load({"scheme": "rezero"})


def test_a_norm_of_one_place_or_stack_or_of_a_scheme_that_raises_counts() -> None:
    def last(at: Place) -> Wiring:
        return Wiring(norms=frozenset({"output"} if at.layer == at.depth == 3 else ()))

    def raising(at: Place) -> Wiring:
        raise ZeroDivisionError

    def plain(at: Place) -> Wiring:
        return Wiring()

    facts = [{"embedding_norm": True}, {"dense": True}, {"final_norm": True}]
    cases = [(last, {}, True), (raising, {}, True), (plain, {}, False)]
    cases += [(plain, fact, True) for fact in facts]
    for function, declared, normed in cases:
        scheme("none", **declared)(function)
        try:
            name, deep = function.__name__, {"model.depth": 3, "model.norm": "rmsnorm"}
            assert load({"scheme": name, **deep}).model.norm == (
                "rmsnorm" if normed else "layernorm"
            )
            if function is last:  # of depth 2 it has none
                assert load({"scheme": name, "model.norm": "rmsnorm"}).model.norm == "layernorm"
        finally:
            del REGISTRY[function.__name__]


def test_the_order_of_keys_is_no_part_of_identity() -> None:
    def backwards(table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        return {key: backwards(table[key]) for key in reversed(table)}

    assert list(backwards(PLAIN)) != list(PLAIN)
    assert parse(backwards(PLAIN), "x").run_id == load().run_id


def longhand(protocol: int = 1, revision: int = 1, *, later: tuple[str, str] = ("", "")) -> str:
    """The identity of PLAIN with beta off, written out; `later` adds fields of model and probe."""
    cross, skip = later
    text = (
        '{"config":{"data":{"name":"reverse","symbols":16,"valid_sequences":256},'
        f'"model":{{{cross}"decoder_depth":null,"depth":2,"dropout":0.0,'
        '"family":"encoder_decoder",'
        '"ffn":32,"heads":2,"norm":"layernorm","width":16},'
        '"optim":{"betas":[0.9,0.98],"clip":0.0,"eps":1e-08,"label_smoothing":0.0,"lr":0.001,'
        '"name":"adam","schedule":"constant","warmup_steps":0,"weight_decay":0.0},'
        f'"probe":{{{skip}"update_steps":10,"window":100}},'
        '"scheme":"deepnorm","scheme_options":{"beta":false},"seed":1,'
        '"train":{"accumulation":1,"batch":4,"length":8,"precision":"32","steps":10,'
        '"validate_every":0}},'
        f'"protocol":{protocol},"revision":{revision}}}'
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def test_run_id_is_the_hash_of_config_protocol_and_revision() -> None:
    assert load({"scheme_options": {"beta": False}}).run_id == longhand(module.PROTOCOL)


def test_a_new_protocol_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROTOCOL", 77)
    assert load({"scheme_options": {"beta": False}}).run_id == longhand(77)


def test_a_new_revision_of_the_scheme_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load({"scheme_options": {"beta": False}})
    monkeypatch.setitem(REGISTRY, "deepnorm", replace(config.rule, revision=3))
    revised = load({"scheme_options": {"beta": False}})
    assert revised.run_id == longhand(module.PROTOCOL, revision=3)


def test_the_quick_configs_run_id_has_not_moved() -> None:
    # this code, revision 1 of deepnorm
    config = parse(read_toml(CONFIGS / "quick.toml"), "configs/quick.toml")
    assert (config.run_id, config.run_id_of(1)) == ("3deaf58d2cb9", "7a3357cbb82a"), (
        "The identity of a config that people have run has changed, so every committed row of it "
        "counts as missing. Update this number only if configs/quick.toml itself was meant to "
        "change, or PROTOCOL or deepnorm's revision was raised because numbers changed. A new "
        "field must have a neutral value that is left out of the hash instead."
    )


# Fields that came later


def test_a_field_that_came_later_is_hashed_only_where_it_is_not_neutral() -> None:
    off = {"scheme_options": {"beta": False}}
    said = off | {"model.cross_attention": True, "probe.skip_blocks": False}
    assert load(said).run_id == longhand(module.PROTOCOL)
    changed_both = off | {"model.cross_attention": False, "probe.skip_blocks": True}
    later = ('"cross_attention":false,', '"skip_blocks":true,')
    assert load(changed_both).run_id == longhand(module.PROTOCOL, later=later)
    alone = load(off | {"model.cross_attention": False}).run_id
    assert alone == longhand(module.PROTOCOL, later=(later[0], ""))


def test_every_field_that_came_later_has_its_neutral_value_as_default() -> None:
    for path, value in module.NEUTRAL.items():
        assert load().at(path) is value


def test_committed_rows_are_those_of_the_plan_that_has_later_fields() -> None:
    with (ROOT / "results" / "depth_text" / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(r["scheme"], int(r["model.depth"]), int(r["seed"])): r["run_id"] for r in rows}
    plan = load_study("depth_text")
    assert plan.axes == ("scheme", "model.depth", "seed")
    protocols = {int(r["protocol"]) for r in rows}
    assert len(protocols) == 1
    earlier = plan.of(protocols.pop())
    assert {cell.values: cell.key for cell in earlier.cells} == found
    assert len(found) == len(rows) == 100
    # this code, protocol 1: of the commit that made the rows, before there were later fields
    golden = [found["post_norm", 6, 0], found["deepnorm", 48, 4]]
    assert golden == ["bdb328fc6677", "6288d52c6d51"], (
        "The identity of runs that are committed has changed. Update only together with the rows, "
        "because PROTOCOL, a scheme's revision or configs/quick.toml was meant to change."
    )


@pytest.mark.parametrize(
    ("changes", "present"),
    [
        ({}, True),
        ({"model.cross_attention": True}, True),
        ({"model.cross_attention": False}, False),
        ({"model.family": "decoder"}, False),
        ({"model.family": "decoder", "model.cross_attention": True}, False),
        ({"model.family": "decoder", "model.cross_attention": False}, False),
        ({"model.family": "encoder"}, False),
        ({"model.family": "encoder", "model.cross_attention": True}, False),
    ],
)
def test_cross_attention_is_told_as_the_cell_has_it(changes: dict[str, Any], present: bool) -> None:
    assert load(changes).at("model.cross_attention") is present


def test_canonical_json_refuses_what_is_no_number() -> None:
    assert canonical({"b": 1e-3, "a": [True, None]}) == '{"a":[true,null],"b":0.001}'
    for value in (NAN, INF):
        with pytest.raises(ValueError, match="JSON"):
            canonical({"a": value})


def test_run_id_is_stable_through_json() -> None:
    config = load({"scheme_options": {"beta": False}, "model.decoder_depth": 3})
    stored = json.dumps(config.model_dump(mode="json"))
    assert parse(json.loads(stored), "x").run_id == config.run_id


# Files and paths


def test_every_shipped_config_loads() -> None:
    files = sorted(CONFIGS.glob("*.toml"))
    assert files
    for file in files:
        assert len(parse(read_toml(file), str(file)).run_id) == 12


def test_a_config_file_that_is_not_there_is_named_with_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "quick.toml").write_text("")
    with pytest.raises(ConfigError) as refused:
        read_toml(tmp_path / "quik.toml")
    assert str(refused.value) == (
        f"{tmp_path}/quik.toml: no such file (did you mean 'quick.toml'?)"
    )


@pytest.mark.parametrize("content", [b"scheme = ", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_a_file_that_is_no_toml_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_toml(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: not readable as TOML: ")
    assert "\n" not in message


def test_a_value_is_set_at_a_dotted_path_of_a_copy() -> None:
    table = {"model": {"depth": 2}, "seed": 0}
    assert with_value(table, "model.depth", 3) == {"model": {"depth": 3}, "seed": 0}
    assert with_value(table, "probe.window", 3)["probe"] == {"window": 3}
    assert with_value(table, "seed", 3)["seed"] == 3
    assert table == {"model": {"depth": 2}, "seed": 0}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", 1),
        ("scheme", "deepnorm"),
        ("model.depth", 2),
        ("optim.betas", (0.9, 0.98)),
        ("data.symbols", 16),
        ("scheme_options.beta", False),
        ("scheme_options.alpha", True),
        ("scheme_options", {"beta": False}),
    ],
)
def test_at_reads_a_value_by_its_dotted_path(path: str, value: Any) -> None:
    assert load({"scheme_options": {"beta": False}}).at(path) == value
