"""Initial weights: the deviation of every matrix, and where its draws come from.

The gains are written here as the papers state them, not read from the schemes.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from harness.model.initialise import calibrate, initialise
from harness.model.layers import Context
from harness.model.transformer import Transformer
from harness.schemes import Place, find

torch.set_num_threads(1)

WIDTH, FFN = 64, 160
SCHEMES = {
    "post_norm": ("post_norm", {}),
    "pre_norm": ("pre_norm", {}),
    "rezero": ("rezero", {}),
    "b2t": ("b2t", {}),
    "b2t released": ("b2t", {"init": "released"}),
    "deepnorm": ("deepnorm", {}),
    "deepnorm without beta": ("deepnorm", {"beta": False}),
    "deepnorm of torchscale": ("deepnorm", {"encoder_constant": "torchscale"}),
    "deepnorm_glm": ("deepnorm_glm", {}),
    "admin": ("admin", {}),
    "admin fused": ("admin", {"qkv": "fused"}),
    "ds_init": ("ds_init", {}),
    "ds_init released": ("ds_init", {"init": "released"}),
    "sub_norm": ("sub_norm", {}),
    "sub_norm fused": ("sub_norm", {"qkv": "fused"}),
    "sandwich released": ("sandwich", {"init": "released"}),
    "normformer": ("normformer", {"residual_scale": True}),
    "peri_norm": ("peri_norm", {}),
    "keel": ("keel", {}),
    "complete_p": ("complete_p", {}),
    "dlcl": ("dlcl", {}),
    "t_fixup": ("t_fixup", {}),
}
PAIRED = [n for n, (scheme, _) in SCHEMES.items() if "encoder_decoder" in find(scheme).families]
FAMILIES = {
    "encoder": lambda depth: (depth, 0),
    "decoder": lambda depth: (0, depth),
    "encoder_decoder": lambda depth: (depth, depth + 1),
}


def build(
    scheme: str,
    encoders: int,
    decoders: int,
    *,
    seed: int = 0,
    width: int = WIDTH,
    ffn: int = FFN,
    norm: str = "layernorm",
    vocabularies: tuple[int, int] = (200, 220),
) -> Transformer:
    name, options = SCHEMES[scheme]
    rule = find(name)
    model = Transformer(
        partial(rule.wire, options=options),
        partial(rule.stack, options=options),
        encoders=encoders,
        decoders=decoders,
        width=width,
        heads=2,
        ffn=ffn,
        norm=norm,  # type: ignore[arg-type]
        dropout=0.0,
        vocabularies=vocabularies,
    )
    return initialise(model, seed)


def gain(
    scheme: str, stack: str, role: str, encoders: int, decoders: int, layer: int, kind: str
) -> float:
    """What the papers multiply the Xavier-normal deviation by; layers from 1."""
    if scheme.endswith(" fused"):  # q, k and v are rows of a 3D x D matrix
        share = math.sqrt((WIDTH + WIDTH) / (3 * WIDTH + WIDTH)) if role in "qkv" else 1.0
        plain = scheme.removesuffix(" fused")
        return share * gain(plain, stack, role, encoders, decoders, layer, kind)
    layers = encoders if stack == "encoder" else decoders
    paired = encoders > 0 and decoders > 0
    if scheme == "b2t released":
        return layers**-0.5
    if scheme == "sandwich released":
        return (2 * layers) ** -0.5 if role in ("o", "down") else 1.0
    if scheme.startswith("ds_init"):
        return layer ** (-0.25 if "released" in scheme else -0.5)
    scaled = ("deepnorm", "deepnorm of torchscale", "deepnorm_glm", "sub_norm", "t_fixup")
    if scheme not in scaled or role in "qk":
        return 1.0
    if scheme == "deepnorm_glm":
        return (2 * layers) ** -0.5
    if scheme == "t_fixup":
        return 0.67 * encoders**-0.25 if stack == "encoder" else (9 * decoders) ** -0.25
    if scheme == "sub_norm" and kind == "cross":
        return 1.0
    if scheme == "sub_norm" and paired and stack == "encoder":
        return math.sqrt(math.log(3 * decoders) * math.log(2 * encoders) / 3)
    if scheme == "sub_norm":
        return math.sqrt(math.log((3 if paired else 2) * layers))
    if not (encoders and decoders):
        return (8 * layers) ** -0.25
    if stack == "encoder":
        constant = 0.87 if scheme == "deepnorm" else 1.15
        return constant * (encoders**4 * decoders) ** -0.0625
    return (12 * decoders) ** -0.25


def blocks(model: Transformer) -> Iterator[tuple[str, int, str, str, Tensor]]:
    """(stack, layer from 0, sublayer, role, weight) of every block matrix."""
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        if "blocks" in parts and parameter.ndim == 2:
            _, stack, _, layer, kind, _, role, _ = parts
            yield stack, int(layer), kind, role, parameter.detach()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("depth", [2, 6, 18])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_projection_has_its_xavier_deviation_times_the_papers_gain(
    scheme: str, depth: int, family: str
) -> None:
    if family not in find(SCHEMES[scheme][0]).families:
        return
    encoders, decoders = FAMILIES[family](depth)
    squares: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for stack, layer, kind, role, weight in blocks(build(scheme, encoders, decoders)):
        expected_fans = {"up": (FFN, WIDTH), "down": (WIDTH, FFN)}.get(role, (WIDTH, WIDTH))
        assert weight.shape == expected_fans
        fans = WIDTH + (FFN if kind == "ffn" else WIDTH)
        own = gain(scheme, stack, role, encoders, decoders, layer + 1, kind)
        std = own * math.sqrt(2 / fans)
        squares[stack, kind, role].append((weight.double() / std).square().mean().item())
    stacks = (encoders > 0) + (decoders > 0)
    assert len(squares) == 6 * stacks + (4 if stacks == 2 else 0)
    for where, values in squares.items():  # in units of the published deviation
        measured = math.sqrt(sum(values) / len(values))
        assert measured == pytest.approx(1, rel=0.03), where


@pytest.mark.parametrize("scheme", PAIRED)
def test_embeddings_and_output_have_unit_variance_over_the_width(scheme: str) -> None:
    model = build(scheme, 2, 3, vocabularies=(400, 500))
    tables = (
        model.stacks["encoder"].embedding.weight,
        model.stacks["decoder"].embedding.weight,
        model.output.weight,
    )
    assert [tuple(w.shape) for w in tables] == [(400, WIDTH), (500, WIDTH), (500, WIDTH)]
    # T-Fixup: (9N)^(-1/4) of a stack's layers, here 2 and 3
    gains = (18**-0.25, 27**-0.25, 1.0) if scheme == "t_fixup" else (1.0, 1.0, 1.0)
    for weight, own in zip(tables, gains, strict=True):
        # 25,600 draws or more: a standard error of 0.44 %
        assert weight.std().item() == pytest.approx(own * WIDTH**-0.5, rel=0.02)
        assert abs(weight.mean().item()) < 4 * WIDTH**-0.5 / math.sqrt(weight.numel())


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("scheme", PAIRED)
def test_biases_are_zero_and_norms_are_the_identity_on_normal_input(scheme: str, norm: str) -> None:
    vectors = {
        name: parameter
        for name, parameter in build(scheme, 2, 3, norm=norm).named_parameters()
        if parameter.ndim == 1 and not name.endswith((".skip", ".branch", ".inner_scale"))
        if ".dense.weights." not in name
    }
    biases = [name for name in vectors if name.endswith(".bias")]
    gains = [name for name in vectors if name.endswith(".weight")]
    assert len(biases) + len(gains) == len(vectors)
    assert len(biases) >= 2 * 6 + 3 * 10
    assert all(bool((vectors[name] == 0).all()) for name in biases)
    assert all(bool((vectors[name] == 1).all()) for name in gains)
    assert bool(gains) == (scheme not in ("rezero", "t_fixup"))


@pytest.mark.parametrize("scheme", PAIRED)
def test_no_two_matrices_share_a_value(scheme: str) -> None:
    # All widths are equal, so matrices of one gain have one deviation and a copy would show.
    torch.set_default_dtype(torch.float64)  # in 32 bits, equal values are no coincidence
    try:
        model = build(scheme, 3, 4, width=16, ffn=16, vocabularies=(16, 16))
    finally:
        torch.set_default_dtype(torch.float32)
    matrices = [p.detach() for p in model.parameters() if p.ndim == 2]
    assert len(matrices) == 3 * 6 + 4 * 10 + 3
    assert len({matrix.data_ptr() for matrix in matrices}) == len(matrices)
    values = torch.cat([matrix.flatten() for matrix in matrices])
    assert len(torch.unique(values)) == len(values)


def draws(scheme: str, encoders: int, decoders: int, seed: int = 0) -> dict[str, Tensor]:
    """z of every matrix: its weights without gain and Xavier factor."""
    z = {}
    for stack, layer, kind, role, weight in blocks(build(scheme, encoders, decoders, seed=seed)):
        factor = gain(scheme, stack, role, encoders, decoders, layer + 1, kind)
        fans = WIDTH + (FFN if kind == "ffn" else WIDTH)
        z[f"{stack}.{layer}.{kind}.{role}"] = weight / (factor * math.sqrt(2 / fans))
    return z


@pytest.mark.parametrize("scheme", SCHEMES)
def test_layer_three_draws_the_same_at_every_depth_and_in_every_scheme_and_family(
    scheme: str,
) -> None:
    reference = draws("post_norm", 3, 3)
    third = {name for name in reference if ".2." in name}
    assert len(third) == 16
    rule = find(SCHEMES[scheme][0])
    for encoders, decoders in ((3, 3), (5, 4), (12, 7), (4, 0), (0, 12)):
        if Place("self", "encoder", 1, encoders, decoders).family not in rule.families:
            continue
        here = draws(scheme, encoders, decoders)
        common = {n for n in third if n in here}
        assert len(common) == (16 if encoders and decoders else 6)
        for name in common:
            torch.testing.assert_close(here[name], reference[name], rtol=1e-5, atol=1e-6)


def test_draws_are_standard_normal_and_differ_between_layers_and_stacks() -> None:
    z = torch.stack([w.flatten()[:4096] for w in draws("deepnorm", 3, 3).values()])
    correlation = torch.corrcoef(z) - torch.eye(len(z))
    # 48 x 47 / 2 correlations of 4,096 pairs: none beyond five standard errors
    assert correlation.abs().max().item() < 5 / math.sqrt(4096)
    kurtosis = (z**4).mean().item()  # 3 for a normal, 1.8 for a uniform
    assert kurtosis == pytest.approx(3, abs=0.1)


def test_a_seed_names_its_draws_and_another_seed_has_others() -> None:
    one, again, other = (build("deepnorm", 2, 2, seed=seed) for seed in (1, 1, 2))
    for (name, a), b, c in zip(
        one.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        if a.ndim == 2:
            assert not bool((a == c).any()), name


def test_building_leaves_the_global_generator_out_of_the_weights() -> None:
    torch.manual_seed(1)
    one = build("rezero", 2, 2)
    torch.manual_seed(2)
    other = build("rezero", 2, 2)
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name


# One batch decides


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_admins_skips_are_the_deviations_of_the_sums_before(family: str) -> None:
    """Written out: omega_1 = 1, then (Var(omega x) + Var(F))^(1/2) of the sublayer before."""
    encoders, decoders = FAMILIES[family](3)
    model = build("admin", encoders, decoders, width=16, ffn=24, vocabularies=(50, 60)).double()
    draw = torch.Generator().manual_seed(1)
    inputs_BT = torch.randint(1, 50, (4, 7), generator=draw)
    source_BS = torch.randint(1, 50, (4, 5), generator=draw) if encoders and decoders else None
    calibrate(model, inputs_BT, None, source_BS, None)
    skips = {name: p.clone() for name, p in model.named_parameters() if name.endswith(".skip")}

    memory = None
    for name, stack in model.stacks.items():
        tokens = source_BS if name == "encoder" and source_BS is not None else inputs_BT
        t_T, i_D = torch.arange(tokens.shape[1])[:, None], torch.arange(0, 16, 2)
        angle = t_T / 10000 ** (i_D / 16)
        positions_TD = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)
        x = 4 * stack.embedding.weight[tokens] + positions_TD
        omega = 1.0
        for layer, block in enumerate(stack.blocks):
            for kind, residual in block.items():
                found = skips[f"stacks.{name}.blocks.{layer}.{kind}.skip"]
                assert found.tolist() == pytest.approx([omega] * 16, rel=1e-5)
                v = residual.f(x, Context(memory_BSD=memory), lambda h: h)
                total = omega * x + v
                omega_next = math.sqrt((omega * x).var(correction=0) + v.var(correction=0))
                x = (total - total.mean(-1, keepdim=True)) / torch.sqrt(
                    total.var(-1, correction=0, keepdim=True) + 1e-5
                )
                omega = omega_next
        memory = x
    # so the last is about the root of one and all branches' variances
    assert 1.5 < omega < 6


@torch.no_grad()
def test_admins_skips_are_smaller_where_queries_keys_and_values_are_drawn_as_one_matrix() -> None:
    draw = torch.Generator().manual_seed(1)
    inputs_BT, source_BS = (torch.randint(1, 50, (4, n), generator=draw) for n in (7, 5))
    last = {}
    for scheme in ("admin", "admin fused"):
        model = build(scheme, 3, 3, width=32, ffn=128, vocabularies=(50, 60))
        calibrate(model, inputs_BT, None, source_BS, None)
        last[scheme] = float(model.stacks["decoder"].blocks[-1]["ffn"].skip[0])
    # Every attention adds half the variance; at 18-18 the factor is about 1.36.
    assert 1.1 < last["admin"] / last["admin fused"] < math.sqrt(2)


def test_a_model_without_profiled_skips_is_left_as_it_is() -> None:
    model = build("deepnorm", 2, 2)
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert calibrate(model, None) is model  # no pass is made
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
