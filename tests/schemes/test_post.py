"""Schemes that normalise the sum: golden constants at several depths, and whole wirings.

Numbers are the published formulas worked out to four decimals by other means than this code;
deepnorm's own are in test_catalogue.py.
"""

import pytest

from harness.schemes import Gain, Learned, Place, Wiring, find, on, places

STALE = "differs from the published formula; update only if the source was misread"


def wirings(name: str, encoders: int, decoders: int, **options: object) -> dict[Place, Wiring]:
    rule = find(name)
    return {at: rule.wire(at, options) for at in places(encoders, decoders)}


def one(name: str, encoders: int, decoders: int, stack: str, **options: object) -> Wiring:
    """The wiring that all sublayers of a stack have."""
    found = {
        w for at, w in wirings(name, encoders, decoders, **options).items() if at.stack == stack
    }
    assert len(found) == 1
    return found.pop()


def near(value: object, golden: float) -> None:
    assert value == pytest.approx(golden, abs=0.5e-4 + 1e-12, rel=0), STALE


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize(
    ("layers", "alpha", "gain"),
    [(6, 3.4641, 0.2887), (70, 11.8322, 0.0845)],  # arXiv:2210.02414 section 2.1; 70 is GLM-130B
)
def test_glms_deepnorm_has_square_roots(layers: int, alpha: float, gain: float, stack: str) -> None:
    sizes = (layers, 0) if stack == "encoder" else (0, layers)
    wiring = one("deepnorm_glm", *sizes, stack)
    near(wiring.skip, alpha)
    near(wiring.gain.v, gain)
    assert wiring == Wiring(norms=on("sum"), skip=wiring.skip, gain=Gain.value_path(wiring.gain.v))
    # sixth of DeepNet's budget at 6 layers, a seventieth at 70: 4 N beta^2 / alpha^2 = 1 / N
    budget = 4 * layers * wiring.gain.v**2 / wiring.skip**2  # type: ignore[operator]
    assert budget == pytest.approx(1 / layers, rel=1e-12)


@pytest.mark.parametrize(
    ("layers", "paper", "released"), [(6, 0.4970, 0.6569), (18, 0.3526, 0.4660)]
)
def test_torchscales_constant_is_an_option_of_a_pairs_encoder_alone(
    layers: int, paper: float, released: float
) -> None:
    plain, other = (
        wirings("deepnorm", layers, layers, **options)
        for options in ({}, {"encoder_constant": "torchscale"})
    )
    for at, wiring in other.items():
        if at.stack == "decoder":
            assert wiring == plain[at]
            continue
        near(plain[at].gain.v, paper)
        near(wiring.gain.v, released)
        assert wiring == Wiring(
            norms=on("sum"), skip=plain[at].skip, gain=Gain.value_path(wiring.gain.v)
        )
    for sizes in ((layers, 0), (0, layers)):
        assert wirings("deepnorm", *sizes) == wirings(
            "deepnorm", *sizes, encoder_constant="torchscale"
        )


@pytest.mark.parametrize(
    ("encoders", "decoders", "stack", "factor"),
    [
        (8, 0, "encoder", 0.25),  # 16^(-1/2)
        (0, 50, "decoder", 0.1),  # 100^(-1/2)
        (8, 12, "encoder", 0.25),
        (8, 12, "decoder", 1 / 6),  # 36^(-1/2)
    ],
)
def test_deepnorms_norms_learn_slower_by_the_root_of_the_sublayers_if_asked(
    encoders: int, decoders: int, stack: str, factor: float
) -> None:
    wiring = one("deepnorm", encoders, decoders, stack, norm_lr="depth")
    assert wiring.norm_lr == pytest.approx(factor, rel=1e-12)
    assert (wiring.lr, wiring.eps) == (1.0, 1.0)
    published = one("deepnorm", encoders, decoders, stack)
    assert published.norm_lr == 1.0
    assert (wiring.skip, wiring.gain) == (published.skip, published.gain)


@pytest.mark.parametrize(
    ("encoders", "decoders", "stack", "log", "constant"),
    [
        (6, 0, "encoder", 2.0170, 3.4641),  # 12 sublayers
        (0, 18, "decoder", 3.0408, 6.0),  # 36
        (18, 18, "encoder", 3.0408, 6.0),
        (18, 18, "decoder", 3.5672, 7.3485),  # 54
    ],
)
def test_admins_closed_forms_are_those_of_admin_torch(
    encoders: int, decoders: int, stack: str, log: float, constant: float
) -> None:
    for init, golden in (("log", log), ("constant", constant)):
        skip = one("admin", encoders, decoders, stack, init=init).skip
        assert isinstance(skip, Learned)
        near(skip.init, golden)
        assert (skip.per, skip.profiled) == ("channel", False)
    expected = Wiring(norms=on("sum"), skip=Learned(1.0, per="channel", profiled=True))
    assert one("admin", encoders, decoders, stack) == expected


@pytest.mark.parametrize(
    ("layer", "paper", "released"),
    [(1, 1.0, 1.0), (2, 0.7071, 0.8409), (6, 0.4082, 0.6389), (12, 0.2887, 0.5373)],
)
def test_ds_init_shrinks_higher_layers_in_deviation_or_as_released_in_variance(
    layer: int, paper: float, released: float
) -> None:
    for options, golden in (({}, paper), ({"init": "released"}, released)):
        found = {w for at, w in wirings("ds_init", 12, 14, **options).items() if at.layer == layer}
        assert len(found) == 1  # both stacks count from their own inputs
        wiring = found.pop()
        near(wiring.gain.q, golden)
        assert wiring == Wiring(norms=on("sum"), gain=Gain.all(wiring.gain.q))


@pytest.mark.parametrize(
    ("layers", "share", "below"),
    [
        (12, 0.25, 3),
        (24, 0.25, 6),
        (6, 0.25, 1),
        (3, 0.25, 0),
        (8, 0.5, 4),
        (8, 0.0, 0),
        (100, 0.29, 29),
    ],
)
def test_mix_norm_is_post_norm_below_and_pre_norm_above(
    layers: int, share: float, below: int
) -> None:
    found = wirings("mix_norm", layers, layers + 4, share=share)
    for at, wiring in found.items():
        if at.stack == "encoder":
            assert wiring == Wiring(norms=on("sum" if at.layer <= below else "input"))
    assert wirings("mix_norm", 0, layers) == wirings("mix_norm", 0, layers, share=0.25)


@pytest.mark.parametrize("layers", [2, 32, 256])  # 64 and 512 sublayers: arXiv:2601.19895 Table 1
def test_keel_weighs_the_skip_by_the_number_of_sublayers_after_the_first_layer(
    layers: int,
) -> None:
    for sizes in ((layers, 0), (0, layers)):
        for at, wiring in wirings("keel", *sizes).items():
            if at.layer > 1:
                assert wiring == Wiring(norms=on("input", "sum"), skip=2.0 * layers)
            elif at.sublayer == "self":
                assert wiring == Wiring(norms=on("input"))
            else:
                assert wiring == Wiring(norms=on("input", "sum"))
