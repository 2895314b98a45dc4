"""A scheme that is another one at some depth is named, and no scheme is that is not."""

import pytest

from harness.schemes import (
    USUAL_SIZES,
    Place,
    Wiring,
    all_schemes,
    find,
    on,
    scheme,
    twin,
    wiring_digest,
)

SIZES = {"encoder": (1, 0), "decoder": (0, 1), "encoder_decoder": (1, 1)}


def named(name: str, encoders: int, decoders: int, **options: object) -> str:
    return twin(find(name), options, encoders, decoders, 1000)


@pytest.mark.parametrize("family", SIZES)
def test_a_scheme_is_another_at_the_depths_where_their_numbers_agree(family: str) -> None:
    encoders, decoders = SIZES[family]
    names = [name for name, rule in all_schemes().items() if family in rule.families]
    found = {
        depth: {
            name: other
            for name in names
            if (other := named(name, depth * encoders, depth * decoders))
        }
        for depth in (1, 2, 3, 4, 12)
    }
    assert found == {
        1: {"ds_init": "post_norm", "mix_norm": "pre_norm", "norm_scaling": "pre_norm"},
        2: {"mix_norm": "pre_norm", "complete_p": "pre_norm"},
        3: {"mix_norm": "pre_norm"},
        4: {},
        12: {},
    }


@pytest.mark.parametrize(
    ("name", "options", "other"),
    [
        ("mix_norm", {"share": 0.1}, "pre_norm"),
        ("mix_norm", {"share": 0.17}, ""),  # one layer of six
        ("mix_norm", {"share": 1.0}, ""),  # Post-Norm, but a norm follows its last layer
        ("deepnorm", {"alpha": False, "beta": False}, "post_norm"),
        ("deepnorm", {"alpha": False}, ""),
        ("peri_norm", {"embedding_norm": False}, "sandwich"),
        ("normformer", {"decoders_only": True}, ""),
    ],
)
def test_options_decide_too(name: str, options: dict[str, object], other: str) -> None:
    assert named(name, 6, 6, **options) == other


def test_normformers_code_is_pre_norm_in_an_encoder_alone() -> None:
    assert named("normformer", 6, 0, decoders_only=True) == "pre_norm"


def test_one_stack_of_a_pair_that_differs_is_enough() -> None:
    assert named("mix_norm", 3, 3) == "pre_norm"
    assert named("mix_norm", 3, 4) == ""


def test_no_scheme_is_another_at_its_usual_depth() -> None:
    for family, sizes in USUAL_SIZES.items():
        rules = [r for r in all_schemes().values() if r.built_in and family in r.families]
        assert len({wiring_digest(rule, {}, *sizes) for rule in rules}) == len(rules)


def test_a_users_function_is_not_called() -> None:
    calls = []

    @scheme("none")
    def copied(at: Place) -> Wiring:
        """LN(x + F(x))"""
        calls.append(at)
        return Wiring(norms=on("sum"))

    assert named("copied", 0, 1) == ""
    assert calls == []


def test_a_scheme_of_a_user_is_never_the_other() -> None:
    @scheme("none", final_norm=True)
    def plain_one(at: Place) -> Wiring:
        """x + F(LN(x))"""
        return Wiring(norms=on("input"))

    assert named("pre_norm", 0, 3) == ""
    assert named("mix_norm", 0, 3) == "pre_norm"
