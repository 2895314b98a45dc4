"""Residual, the interpreter of a Wiring, with every term on; its coefficients; attention."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from harness.model.layers import Attention, Context, Factors, FeedForward, Residual
from harness.schemes import Learned, Place, Wiring, find, on

torch.set_num_threads(1)

WIDTH, INNER = 8, 12


class Fixed(nn.Module):
    """A sublayer F whose answer is known."""

    inner_width = WIDTH

    def __init__(self, answer_BTD: Tensor) -> None:
        super().__init__()
        self.answer_BTD = answer_BTD

    def forward(self, x_BTD: Tensor, context: Context, inner: Callable[[Tensor], Tensor]) -> Tensor:
        return self.answer_BTD


def residual(
    f: nn.Module,
    wiring: Wiring,
    dropout: float = 0.0,
    shared: dict[str, nn.Parameter] | None = None,
) -> Residual:
    return Residual(f, wiring, nn.LayerNorm, WIDTH, dropout, {} if shared is None else shared)  # type: ignore[arg-type]


def randomise(module: nn.Module) -> None:
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(1 + torch.randn(parameter.shape, generator=draw))


def layer_norm(x: Tensor, norm: nn.Module) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / ((centred**2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


@pytest.fixture
def streams() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x, x0 = torch.randn(2, 2, 5, WIDTH, generator=draw, dtype=torch.float64)
    return x, x0


EVERYTHING = Wiring(
    norms=on("input", "inner", "output", "sum"),
    skip=1.7,
    branch=0.3,
    bypass=0.6,
    input_scale=0.2,
    inner_scale=0.7,
    output_scale=0.9,
)


def test_a_feed_forward_with_every_term_on_is_the_equation(streams: tuple[Tensor, Tensor]) -> None:
    module = residual(FeedForward(WIDTH, INNER), EVERYTHING).double()
    randomise(module)
    x, x0 = streams
    f, norms = module.f, module.norms
    h = layer_norm(x, norms["input"]) * 0.2
    h = torch.relu(h @ f.up.weight.T + f.up.bias)
    v = 0.7 * layer_norm(h, norms["inner"]) @ f.down.weight.T + f.down.bias
    v = layer_norm(0.9 * v, norms["output"])
    y = layer_norm(1.7 * x + 0.3 * v + 0.6 * x0, norms["sum"])
    torch.testing.assert_close(module(x, x0, Context()), y, rtol=1e-10, atol=1e-10)


def test_attentions_inner_norm_stands_before_its_output_projection(
    streams: tuple[Tensor, Tensor],
) -> None:
    attention = Attention(WIDTH, 1, causal=False, cross=False)
    module = residual(attention, EVERYTHING).double()
    randomise(module)
    x, x0 = streams
    f, norms = module.f, module.norms
    h = layer_norm(x, norms["input"]) * 0.2
    q, k, v = (h @ p.weight.T + p.bias for p in (f.q, f.k, f.v))
    h = torch.softmax(q @ k.mT / math.sqrt(WIDTH), dim=-1) @ v
    v = 0.7 * layer_norm(h, norms["inner"]) @ f.o.weight.T + f.o.bias
    v = layer_norm(0.9 * v, norms["output"])
    y = layer_norm(1.7 * x + 0.3 * v + 0.6 * x0, norms["sum"])
    torch.testing.assert_close(module(x, x0, Context()), y, rtol=1e-10, atol=1e-10)


def test_a_norm_is_made_for_the_named_sites_only_and_as_wide_as_what_it_sees() -> None:
    module = residual(FeedForward(WIDTH, INNER), Wiring(norms=on("inner", "sum")))
    widths = {site: tuple(norm.weight.shape) for site, norm in module.norms.items()}
    assert widths == {"inner": (INNER,), "sum": (WIDTH,)}
    assert len(residual(FeedForward(WIDTH, INNER), Wiring()).norms) == 0


def test_a_number_is_no_parameter_and_a_learned_coefficient_is_one() -> None:
    f = FeedForward(WIDTH, INNER)
    inside = {f"f.{name}" for name, _ in f.named_parameters()}
    assert {n for n, _ in residual(f, Wiring(skip=2.0)).named_parameters()} == inside
    learned = residual(f, Wiring(skip=Learned(0.5), branch=Learned(0.25, per="channel")))
    assert {n for n, _ in learned.named_parameters()} == inside | {"skip", "branch"}
    assert learned.skip.shape == ()
    assert learned.branch.shape == (WIDTH,)
    assert learned.skip.item() == 0.5
    assert learned.branch.tolist() == [0.25] * WIDTH
    inner = residual(f, Wiring(inner_scale=Learned(0.5, per="channel")))
    assert inner.inner_scale.tolist() == [0.5] * INNER


def test_a_coefficient_of_a_channel_scales_that_channel(streams: tuple[Tensor, Tensor]) -> None:
    x, x0 = streams
    module = residual(Fixed(x0), Wiring(branch=Learned(0.0, per="channel"))).double()
    with torch.no_grad():
        module.branch.copy_(torch.arange(WIDTH))
    torch.testing.assert_close(
        module(x, x, Context()), x + torch.arange(WIDTH) * x0, rtol=1e-12, atol=1e-12
    )


def test_a_layers_sublayers_share_one_coefficient_and_no_other_kind() -> None:
    shared: dict[str, nn.Parameter] = {}
    of_layer = Wiring(branch=Learned(0.0, per="layer"))
    first, second = (residual(FeedForward(WIDTH, INNER), of_layer, shared=shared) for _ in range(2))
    assert first.branch is second.branch
    assert residual(FeedForward(WIDTH, INNER), of_layer).branch is not first.branch
    own = Wiring(branch=Learned(0.0, per="sublayer"))
    third, fourth = (residual(FeedForward(WIDTH, INNER), own, shared=shared) for _ in range(2))
    assert third.branch is not fourth.branch
    assert third.branch is not first.branch


def test_a_layers_skip_and_branch_are_two_coefficients() -> None:
    both = Wiring(skip=Learned(1.0, per="layer"), branch=Learned(0.0, per="layer"))
    module = residual(FeedForward(WIDTH, INNER), both)
    assert module.skip is not module.branch
    assert (module.skip.item(), module.branch.item()) == (1.0, 0.0)


def test_a_shared_coefficient_stays_shared_in_a_copy() -> None:
    shared: dict[str, nn.Parameter] = {}
    wiring = Wiring(branch=Learned(0.0, per="layer"))
    layer = nn.ModuleList(residual(FeedForward(WIDTH, INNER), wiring, shared=shared) for _ in "ab")
    twin = copy.deepcopy(layer)
    assert twin[0].branch is twin[1].branch
    assert twin[0].branch is not layer[0].branch


def test_deepnorm_tends_to_the_norm_of_its_input_as_alpha_grows(
    streams: tuple[Tensor, Tensor],
) -> None:
    # arXiv:2203.00555 Figure 2: alpha is on the skip, so a deep layer is LN(x) and not LN(F(x))
    x, answer = streams
    distances = []
    for layers in (1, 10**4, 10**8, 10**12, 10**16):
        wiring = find("deepnorm").wire(Place("ffn", "decoder", 1, 0, layers), {})
        module = residual(Fixed(answer), wiring).double()
        y = module(x, x, Context())
        distances.append((y - nn.functional.layer_norm(x, (WIDTH,))).abs().max().item())
    # alpha grows by 10 each time, and the distance is of order |F(x)| / alpha
    for nearer, farther in zip(distances[1:], distances, strict=False):
        assert nearer < farther / 3
    assert distances[-1] < 10 / (2 * 10**16) ** 0.25


def test_dropout_falls_on_the_branch_alone_and_in_training_only() -> None:
    x, answer = torch.full((4, 9, WIDTH), 5.0), torch.ones(4, 9, WIDTH)
    module = residual(Fixed(answer), Wiring(skip=1.0, branch=3.0, bypass=2.0), dropout=0.25)
    torch.manual_seed(0)
    y = module(x, x, Context())
    dropped = y == 15  # 5 + 2 * 5
    kept = torch.isclose(y, torch.tensor(15 + 3 / 0.75))
    assert bool((dropped | kept).all())
    share = dropped.double().mean().item()
    assert share == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / y.numel()))
    module.eval()
    assert bool((module(x, x, Context()) == 18).all())


def test_dropout_comes_after_the_branchs_own_norm() -> None:
    torch.manual_seed(0)
    answer = torch.randn(4, 9, WIDTH)
    module = residual(Fixed(answer), Wiring(norms=on("output"), skip=0.0), dropout=0.5)
    y = module(answer, answer, Context())
    kept = 2 * nn.functional.layer_norm(answer, (WIDTH,))
    assert bool((torch.isclose(y, kept, atol=1e-6) | (y == 0)).all())
    assert bool((y == 0).any())


def test_an_attention_attends_to_what_its_mask_shows() -> None:
    attention = Attention(WIDTH, 2, causal=False, cross=False).double()
    draw = torch.Generator().manual_seed(2)
    x_BTD = torch.randn(1, 4, WIDTH, generator=draw, dtype=torch.float64)
    mask_BT = torch.tensor([[True, True, False, False]])
    seen = attention(x_BTD, Context(mask_BT), lambda h: h)
    alone = attention(x_BTD[:, :2], Context(), lambda h: h)
    torch.testing.assert_close(seen[:, :2], alone, rtol=1e-12, atol=1e-12)
    everything = attention(x_BTD, Context(), lambda h: h)
    assert (everything[:, :2] - alone).abs().max() > 1e-3


def test_cross_attention_needs_a_memory() -> None:
    attention = Attention(WIDTH, 2, causal=False, cross=True)
    with pytest.raises(AssertionError, match="cross-attention without memory"):
        attention(torch.zeros(1, 2, WIDTH), Context(), lambda h: h)


def test_each_head_has_a_factor_before_the_output_projection(
    streams: tuple[Tensor, Tensor],
) -> None:
    attention = Attention(WIDTH, 4, causal=False, cross=False)
    module = residual(attention, Wiring(inner_scale=Learned(1.0, per="head"))).double()
    assert module.inner_scale.tolist() == [1.0] * 4
    x, _ = streams
    plain = attention(x, Context(), lambda h: h)
    torch.testing.assert_close(module(x, x, Context()), x + plain, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        module.inner_scale.copy_(torch.tensor([2.0, 3.0, 5.0, 7.0]))
    channels = torch.tensor([2.0, 2.0, 3.0, 3.0, 5.0, 5.0, 7.0, 7.0], dtype=torch.float64)
    scaled = attention(x, Context(), lambda h: channels * h)
    torch.testing.assert_close(module(x, x, Context()), x + scaled, rtol=1e-12, atol=1e-12)
    after = residual(attention, Wiring(output_scale=Learned(1.0, per="head"))).double()
    with torch.no_grad():
        after.output_scale.copy_(module.inner_scale)
    torch.testing.assert_close(after(x, x, Context()), x + channels * plain, rtol=1e-12, atol=1e-12)


def test_queries_and_keys_are_normalised_before_they_are_split() -> None:
    attention = Attention(WIDTH, 2, causal=False, cross=False, norm=nn.LayerNorm)
    assert attention.q_norm.weight.shape == attention.k_norm.weight.shape == (WIDTH,)
    assert attention.q_norm is not attention.k_norm
    plain = Attention(WIDTH, 2, causal=False, cross=False)
    assert plain.q_norm is plain.k_norm is None
    x_BTD = torch.randn(1, 4, WIDTH, generator=torch.Generator().manual_seed(2))
    before = attention(x_BTD, Context(), lambda h: h)
    with torch.no_grad():  # a norm takes no notice of scale
        for projection in (attention.q, attention.k):
            projection.weight.mul_(100)
            projection.bias.mul_(100)
    torch.testing.assert_close(
        attention(x_BTD, Context(), lambda h: h), before, rtol=1e-3, atol=1e-4
    )


def test_factors_tell_matrices_and_biases_norms_and_coefficients_apart() -> None:
    attention = Attention(WIDTH, 2, causal=False, cross=False, norm=nn.LayerNorm)
    wiring = Wiring(norms=on("input"), skip=Learned(1.0), lr=0.5, norm_lr=0.25, eps=0.125)
    module = residual(attention, wiring)
    names = {id(p): name for name, p in module.named_parameters()}
    found = {names[id(p)]: own for p, own in module.factors()}
    assert len(found) == len(names)
    for name, own in found.items():
        lr = 1.0 if name == "skip" else 0.25 if "norm" in name else 0.5
        assert own == Factors(lr, 0.125), name
