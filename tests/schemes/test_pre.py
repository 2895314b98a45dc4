"""Schemes that normalise in the branch: golden constants at several depths, and whole wirings.

Numbers are the published formulas worked out to four decimals by other means than this code.
"""

import pytest

from harness.schemes import Gain, Learned, Wiring, find, on
from tests.schemes.test_post import near, one, wirings

PAIR, ENCODER, DECODER = (5, 7), (5, 0), (0, 7)
everywhere = pytest.mark.parametrize("sizes", [PAIR, ENCODER, DECODER])


@pytest.mark.parametrize(
    ("layers", "gain"),
    [(6, 1.5764), (24, 1.9675), (72, 2.2293)],  # sqrt(ln 2N)
)
def test_sub_norm_of_one_stack_draws_the_value_path_with_the_root_of_a_logarithm(
    layers: int, gain: float
) -> None:
    for sizes, stack in (((layers, 0), "encoder"), ((0, layers), "decoder")):
        wiring = one("sub_norm", *sizes, stack)
        near(wiring.gain.v, gain)
        assert wiring == Wiring(norms=on("input", "inner"), gain=Gain.value_path(wiring.gain.v))


@pytest.mark.parametrize(
    ("encoders", "decoders", "of_encoder", "of_decoder"),
    [(6, 6, 1.5473, 1.7001), (18, 18, 2.1829, 1.9972), (12, 3, 1.5257, 1.4823)],
)
def test_sub_norm_of_a_pair_has_gains_of_both_depths_and_leaves_cross_attention_alone(
    encoders: int, decoders: int, of_encoder: float, of_decoder: float
) -> None:
    for at, wiring in wirings("sub_norm", encoders, decoders).items():
        assert wiring.norms == on("input", "inner")
        if at.sublayer == "cross":
            assert wiring.gain == Gain()
            continue
        near(wiring.gain.v, of_encoder if at.stack == "encoder" else of_decoder)
        assert wiring.gain == Gain.value_path(wiring.gain.v)


@everywhere
def test_normformer_adds_norms_and_scales_heads(sizes: tuple[int, int]) -> None:
    heads = Learned(1.0, per="head")
    expected = {
        "self": Wiring(norms=on("input", "output"), inner_scale=heads),
        "cross": Wiring(norms=on("input")),
        "ffn": Wiring(norms=on("input", "inner")),
    }
    assert all(w == expected[at.sublayer] for at, w in wirings("normformer", *sizes).items())
    unscaled = wirings("normformer", *sizes, head_scale="none")
    assert not any(wiring.learned for wiring in unscaled.values())
    released = wirings("normformer", *sizes, head_scale="released")
    expected["self"] = Wiring(norms=on("input", "output"), output_scale=heads)
    assert all(wiring == expected[at.sublayer] for at, wiring in released.items())
    for at, wiring in wirings("normformer", *sizes, residual_scale=True).items():
        skip = Learned(1.0, per="channel") if at.sublayer == "ffn" else 1.0
        assert wiring.skip == skip


@everywhere
def test_normformers_code_leaves_encoders_as_pre_norm(sizes: tuple[int, int]) -> None:
    published = wirings("normformer", *sizes)
    for at, wiring in wirings("normformer", *sizes, decoders_only=True).items():
        plain = Wiring(norms=on("input"))
        assert wiring == (plain if at.stack == "encoder" else published[at])


@pytest.mark.parametrize(("layers", "last"), [(6, 0.2887), (18, 0.1667), (48, 0.1021)])
def test_released_sandwich_draws_the_last_projection_smaller(layers: int, last: float) -> None:
    for sizes in ((layers, 0), (0, layers), (layers, layers)):
        for wiring in wirings("sandwich", *sizes, init="released").values():
            near(wiring.gain.o, last)  # (2N)^(-1/2)
            gain = Gain(o=wiring.gain.o, down=wiring.gain.o)
            assert wiring == Wiring(norms=on("input", "output"), gain=gain)
    for at, wiring in wirings("sandwich", 6, 18, init="released").items():
        near(wiring.gain.down, 0.2887 if at.stack == "encoder" else 0.1667)


@everywhere
@pytest.mark.parametrize(
    ("name", "sites"),
    [
        ("pre_norm", ("input",)),
        ("reordered", ("output",)),
        ("sandwich", ("input", "output")),
        ("peri_norm", ("input", "output")),
        ("dlcl", ("input",)),
    ],
)
def test_a_placement_is_the_same_in_every_sublayer(
    name: str, sites: tuple[str, ...], sizes: tuple[int, int]
) -> None:
    assert set(wirings(name, *sizes).values()) == {Wiring(norms=on(*sites))}  # type: ignore[arg-type]


@everywhere
def test_norm_scaling_divides_by_the_root_of_the_layer(sizes: tuple[int, int]) -> None:
    golden = {1: 1.0, 2: 0.7071, 6: 0.4082}
    for at, wiring in wirings("norm_scaling", *sizes).items():
        if at.layer in golden:
            near(wiring.input_scale, golden[at.layer])
        assert wiring == Wiring(norms=on("input"), input_scale=wiring.input_scale)
    near(one_of("norm_scaling", 24).input_scale, 0.2041)


def one_of(name: str, layer: int) -> Wiring:
    found = {w for at, w in wirings(name, 0, layer).items() if at.layer == layer}
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize(
    ("layers", "start"),
    # arXiv:2103.17239; facebookresearch/deit has 1e-5 at 24 and 1e-6 at 36 and 48
    [(1, 0.1), (12, 0.1), (18, 0.1), (24, 1e-5), (36, 1e-6), (48, 1e-6)],
)
def test_layer_scale_starts_smaller_the_deeper(layers: int, start: float) -> None:
    for sizes, stack in (((layers, 0), "encoder"), ((0, layers), "decoder")):
        branch = Learned(start, per="channel")
        assert one("layer_scale", *sizes, stack) == Wiring(norms=on("input"), branch=branch)


@pytest.mark.parametrize(
    ("layers", "options", "branch", "rate", "eps"),
    # arXiv:2505.01618 Table 1: m^(-a), m^(a-1), m^(-a), with m = layers / base_depth
    [
        (2, {}, 1.0, 1.0, 1.0),
        (6, {}, 0.3333, 1.0, 0.3333),
        (48, {}, 0.0417, 1.0, 0.0417),
        (6, {"exponent": 0.5}, 0.5774, 0.5774, 0.5774),
        (48, {"exponent": 0.5}, 0.2041, 0.2041, 0.2041),
        (48, {"base_depth": 12}, 0.25, 1.0, 0.25),
        (48, {"exponent": 0.0, "base_depth": 12}, 1.0, 0.25, 1.0),
    ],
)
def test_complete_p_scales_branch_rate_and_epsilon_with_depth(
    layers: int, options: dict[str, object], branch: float, rate: float, eps: float
) -> None:
    wiring = one("complete_p", 0, layers, "decoder", **options)
    near(wiring.branch, branch)
    near(wiring.lr, rate)
    near(wiring.norm_lr, rate)
    near(wiring.eps, eps)
    assert (wiring.norms, wiring.skip, wiring.gain) == (on("input"), 1.0, Gain())


def test_a_norm_follows_the_last_layer_of_all_of_them() -> None:
    names = ["sub_norm", "normformer", "reordered", "sandwich", "peri_norm", "norm_scaling"]
    for name in [*names, "layer_scale", "complete_p", "dlcl", "mix_norm"]:
        for at in wirings(name, 2, 2):
            facts = find(name).stack(at, {})
            assert facts.final_norm
            assert facts.dense == (name == "dlcl")
            assert facts.embedding_norm == (name == "peri_norm")
            assert facts.embedding_gain == 1.0
    assert not find("peri_norm").stack(at, {"embedding_norm": False}).embedding_norm
