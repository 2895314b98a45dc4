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

from harness.model.initialise import initialise
from harness.model.transformer import Transformer
from harness.schemes import find

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
}
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


def gain(scheme: str, stack: str, role: str, encoders: int, decoders: int) -> float:
    """What the papers multiply the Xavier-normal deviation by."""
    layers = encoders if stack == "encoder" else decoders
    if scheme == "b2t released":
        return layers**-0.5
    if scheme != "deepnorm" or role in "qk":
        return 1.0
    if not (encoders and decoders):
        return (8 * layers) ** -0.25
    if stack == "encoder":
        return 0.87 * (encoders**4 * decoders) ** -0.0625
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
    encoders, decoders = FAMILIES[family](depth)
    squares: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for stack, _, kind, role, weight in blocks(build(scheme, encoders, decoders)):
        expected_fans = {"up": (FFN, WIDTH), "down": (WIDTH, FFN)}.get(role, (WIDTH, WIDTH))
        assert weight.shape == expected_fans
        squares[stack, kind, role].append(weight.double().square().mean().item())
    stacks = (encoders > 0) + (decoders > 0)
    assert len(squares) == 6 * stacks + (4 if stacks == 2 else 0)
    for (stack, kind, role), values in squares.items():
        fans = WIDTH + (FFN if kind == "ffn" else WIDTH)
        std = gain(scheme, stack, role, encoders, decoders) * math.sqrt(2 / fans)
        measured = math.sqrt(sum(values) / len(values))
        assert measured == pytest.approx(std, rel=0.03), (stack, kind, role)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_embeddings_and_output_have_unit_variance_over_the_width(scheme: str) -> None:
    model = build(scheme, 2, 3, vocabularies=(400, 500))
    tables = (
        model.stacks["encoder"].embedding.weight,
        model.stacks["decoder"].embedding.weight,
        model.output.weight,
    )
    assert [tuple(w.shape) for w in tables] == [(400, WIDTH), (500, WIDTH), (500, WIDTH)]
    for weight in tables:
        # 25,600 draws or more: a standard error of 0.44 %
        assert weight.std().item() == pytest.approx(WIDTH**-0.5, rel=0.02)
        assert abs(weight.mean().item()) < 4 * WIDTH**-0.5 / math.sqrt(weight.numel())


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_biases_are_zero_and_norms_are_the_identity_on_normal_input(scheme: str, norm: str) -> None:
    vectors = {
        name: parameter
        for name, parameter in build(scheme, 2, 3, norm=norm).named_parameters()
        if parameter.ndim == 1
    }
    biases = [name for name in vectors if name.endswith(".bias")]
    gains = [name for name in vectors if name.endswith(".weight")]
    assert len(biases) + len(gains) == len(vectors)
    assert len(biases) >= 2 * 6 + 3 * 10
    assert all(bool((vectors[name] == 0).all()) for name in biases)
    assert all(bool((vectors[name] == 1).all()) for name in gains)
    assert bool(gains) == (scheme != "rezero")


@pytest.mark.parametrize("scheme", SCHEMES)
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
        factor = gain(scheme, stack, role, encoders, decoders)
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
    for encoders, decoders in ((3, 3), (5, 4), (12, 7), (4, 0), (0, 12)):
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
