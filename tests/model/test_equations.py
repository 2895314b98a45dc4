"""Every scheme's whole model against its equation written out longhand, in float64.

Nothing here is shared with the model: attention, norms, positions and layers are spelled out from
weights read by name. Biases, gains and learned coefficients are random, so that none can hide.

Letters: B batch, T target length, S source length, D width, H heads, K head width.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from harness.model.initialise import initialise
from harness.model.transformer import Transformer
from harness.schemes import all_schemes, find

torch.set_num_threads(1)

WIDTH, HEADS, FFN, VOCABULARIES = 8, 2, 12, (11, 13)
FAMILIES = {"encoder": (3, 0), "decoder": (0, 3), "encoder_decoder": (2, 3)}
Weights = dict[str, Tensor]
Norm = Callable[[Tensor, Weights, str], Tensor]
Inner = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def layer_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred**2).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def rms_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-5) * w[f"{name}.weight"]


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return torch.einsum("bti,oi->bto", x, w[f"{name}.weight"]) + w[f"{name}.bias"]


def attention(
    x_BTD: Tensor,
    source_BSD: Tensor,
    seen_BTS: Tensor,
    w: Weights,
    name: str,
    norm: Norm,
    inner: Inner,
) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V, one head after the other, over the positions that are seen."""
    q_BTD, k_BSD, v_BSD = (
        linear(y, w, f"{name}.{role}")
        for role, y in (("q", x_BTD), ("k", source_BSD), ("v", source_BSD))
    )
    if f"{name}.q_norm.weight" in w:  # OLMo 2: over all heads at once
        q_BTD, k_BSD = norm(q_BTD, w, f"{name}.q_norm"), norm(k_BSD, w, f"{name}.k_norm")
    width = WIDTH // HEADS
    heads = []
    for head in range(HEADS):
        mine = slice(head * width, (head + 1) * width)
        scores_BTS = q_BTD[..., mine] @ k_BSD[..., mine].mT / math.sqrt(width)
        scores_BTS = torch.where(seen_BTS, scores_BTS, -math.inf)
        heads.append(torch.softmax(scores_BTS, dim=-1) @ v_BSD[..., mine])
    return linear(inner(torch.cat(heads, dim=-1)), w, f"{name}.o")


def feed_forward(x: Tensor, w: Weights, name: str, inner: Inner) -> Tensor:
    return linear(inner(torch.relu(linear(x, w, f"{name}.up"))), w, f"{name}.down")


def plain(h: Tensor) -> Tensor:
    return h


def embed(tokens_BT: Tensor, w: Weights, name: str) -> Tensor:
    """sqrt(D) E[token] + sin(t / 10000^(i/D)) at even channels i, cos of the same at i + 1."""
    positions = torch.empty(tokens_BT.shape[1], WIDTH)
    for t in range(tokens_BT.shape[1]):
        for i in range(0, WIDTH, 2):
            positions[t, i] = math.sin(t / 10000 ** (i / WIDTH))
            positions[t, i + 1] = math.cos(t / 10000 ** (i / WIDTH))
    return math.sqrt(WIDTH) * w[name][tokens_BT] + positions


class Layer:
    """F of each sublayer and the norms of one layer, by name."""

    def __init__(
        self,
        w: Weights,
        name: str,
        norm: Norm,
        seen_BTT: Tensor,
        memory: tuple[Tensor, Tensor] | None,
    ) -> None:
        self.w, self.name, self.seen_BTT, self.memory = w, name, seen_BTT, memory
        self._norm = norm
        self.layer = int(name.rpartition(".")[2]) + 1

    def attend(self, x: Tensor, inner: Inner = plain) -> Tensor:
        name = f"{self.name}.self.f"
        return attention(x, x, self.seen_BTT, self.w, name, self._norm, inner)

    def cross(self, x: Tensor, inner: Inner = plain) -> Tensor:
        assert self.memory is not None
        memory_BSD, seen_BTS = self.memory
        name = f"{self.name}.cross.f"
        return attention(x, memory_BSD, seen_BTS, self.w, name, self._norm, inner)

    def ffn(self, x: Tensor, inner: Inner = plain) -> Tensor:
        return feed_forward(x, self.w, f"{self.name}.ffn.f", inner)

    def norm(self, site: str, x: Tensor) -> Tensor:
        kind, _, place = site.partition(".")
        return self._norm(x, self.w, f"{self.name}.{kind}.norms.{place}")

    def number(self, name: str) -> Tensor:
        return self.w[f"{self.name}.{name}"]


def post_norm(x: Tensor, of: Layer) -> Tensor:
    x = of.norm("self.sum", x + of.attend(x))
    if of.memory is not None:
        x = of.norm("cross.sum", x + of.cross(x))
    return of.norm("ffn.sum", x + of.ffn(x))


def pre_norm(x: Tensor, of: Layer) -> Tensor:
    x = x + of.attend(of.norm("self.input", x))
    if of.memory is not None:
        x = x + of.cross(of.norm("cross.input", x))
    return x + of.ffn(of.norm("ffn.input", x))


def rezero(x: Tensor, of: Layer) -> Tensor:
    a = of.number("self.branch")
    x = x + a * of.attend(x)
    if of.memory is not None:
        x = x + a * of.cross(x)
    return x + a * of.ffn(x)


def b2t(x: Tensor, of: Layer) -> Tensor:
    if of.memory is None:
        y = of.norm("self.sum", x + of.attend(x))
        return of.norm("ffn.sum", x + y + of.ffn(y))
    y1 = of.norm("self.sum", x + of.attend(x))
    y2 = of.norm("cross.sum", y1 + of.cross(y1))
    return of.norm("ffn.sum", x + y2 + of.ffn(y2))


def scaled_skip(x: Tensor, of: Layer, alpha: float) -> Tensor:
    x = of.norm("self.sum", alpha * x + of.attend(x))
    if of.memory is not None:
        x = of.norm("cross.sum", alpha * x + of.cross(x))
    return of.norm("ffn.sum", alpha * x + of.ffn(x))


def deepnorm(x: Tensor, of: Layer) -> Tensor:
    if of.name.startswith("stacks.decoder") and "stacks.encoder.embedding.weight" in of.w:
        return scaled_skip(x, of, 9**0.25)  # (3M)^(1/4), 3 decoder layers
    if "stacks.decoder.embedding.weight" in of.w and "stacks.encoder.embedding.weight" in of.w:
        return scaled_skip(x, of, 0.81 * (2**4 * 3) ** 0.0625)  # 2 encoder and 3 decoder layers
    return scaled_skip(x, of, 6**0.25)  # (2N)^(1/4), 3 layers in one stack


def deepnorm_glm(x: Tensor, of: Layer) -> Tensor:
    return scaled_skip(x, of, 6**0.5)  # (2N)^(1/2), 3 layers


def admin(x: Tensor, of: Layer) -> Tensor:
    x = of.norm("self.sum", x * of.number("self.skip") + of.attend(x))
    if of.memory is not None:
        x = of.norm("cross.sum", x * of.number("cross.skip") + of.cross(x))
    return of.norm("ffn.sum", x * of.number("ffn.skip") + of.ffn(x))


def no_norm(x: Tensor, of: Layer) -> Tensor:
    x = x + of.attend(x)
    if of.memory is not None:
        x = x + of.cross(x)
    return x + of.ffn(x)


def sub_norm(x: Tensor, of: Layer) -> Tensor:
    x = x + of.attend(of.norm("self.input", x), lambda h: of.norm("self.inner", h))
    if of.memory is not None:
        x = x + of.cross(of.norm("cross.input", x), lambda h: of.norm("cross.inner", h))
    return x + of.ffn(of.norm("ffn.input", x), lambda h: of.norm("ffn.inner", h))


def normformer(x: Tensor, of: Layer, *, heads: str = "before", residual: bool = False) -> Tensor:
    def scaled(h: Tensor) -> Tensor:
        where = {"before": "inner_scale", "after": "output_scale"}[heads]
        gamma_1, gamma_2 = of.number(f"self.{where}")
        return torch.cat([gamma_1 * h[..., :4], gamma_2 * h[..., 4:]], dim=-1)

    attended = of.attend(of.norm("self.input", x), scaled if heads == "before" else plain)
    x = x + of.norm("self.output", scaled(attended) if heads == "after" else attended)
    if of.memory is not None:
        x = x + of.cross(of.norm("cross.input", x))
    skip = of.number("ffn.skip") * x if residual else x
    return skip + of.ffn(of.norm("ffn.input", x), lambda h: of.norm("ffn.inner", h))


def normformer_as_released(x: Tensor, of: Layer) -> Tensor:
    return (normformer if "decoder" in of.name else pre_norm)(x, of)


def reordered(x: Tensor, of: Layer) -> Tensor:
    x = x + of.norm("self.output", of.attend(x))
    if of.memory is not None:
        x = x + of.norm("cross.output", of.cross(x))
    return x + of.norm("ffn.output", of.ffn(x))


def sandwich(x: Tensor, of: Layer) -> Tensor:
    x = x + of.norm("self.output", of.attend(of.norm("self.input", x)))
    if of.memory is not None:
        x = x + of.norm("cross.output", of.cross(of.norm("cross.input", x)))
    return x + of.norm("ffn.output", of.ffn(of.norm("ffn.input", x)))


def norm_scaling(x: Tensor, of: Layer) -> Tensor:
    root = math.sqrt(of.layer)
    x = x + of.attend(of.norm("self.input", x) / root)
    if of.memory is not None:
        x = x + of.cross(of.norm("cross.input", x) / root)
    return x + of.ffn(of.norm("ffn.input", x) / root)


def layer_scale(x: Tensor, of: Layer) -> Tensor:
    x = x + of.number("self.branch") * of.attend(of.norm("self.input", x))
    if of.memory is not None:
        x = x + of.number("cross.branch") * of.cross(of.norm("cross.input", x))
    return x + of.number("ffn.branch") * of.ffn(of.norm("ffn.input", x))


def mix_norm(x: Tensor, of: Layer) -> Tensor:
    return (post_norm if of.layer == 1 else pre_norm)(x, of)  # half of 2 or 3 layers, rounded down


def keel(x: Tensor, of: Layer) -> Tensor:
    attended, alpha = of.attend(of.norm("self.input", x)), 6  # sublayers of 3 layers
    x = x + attended if of.layer == 1 else of.norm("self.sum", alpha * x + attended)
    fed = of.ffn(of.norm("ffn.input", x))
    return of.norm("ffn.sum", (x if of.layer == 1 else alpha * x) + fed)


def complete_p(x: Tensor, of: Layer, exponent: float = 1.0, base: int = 2) -> Tensor:
    encoder_of_pair = "encoder" in of.name and "stacks.decoder.embedding.weight" in of.w
    m = 2 / base if encoder_of_pair else 3 / base
    x = x + of.attend(of.norm("self.input", x)) / m**exponent
    if of.memory is not None:
        x = x + of.cross(of.norm("cross.input", x)) / m**exponent
    return x + of.ffn(of.norm("ffn.input", x)) / m**exponent


EQUATIONS = {
    "post_norm": post_norm,
    "pre_norm": pre_norm,
    "rezero": rezero,
    "b2t": b2t,
    "deepnorm": deepnorm,
    "deepnorm_glm": deepnorm_glm,
    "admin": admin,
    "ds_init": post_norm,
    "t_fixup": no_norm,
    "sub_norm": sub_norm,
    "normformer": normformer,
    "reordered": reordered,
    "sandwich": sandwich,
    "peri_norm": sandwich,
    "norm_scaling": norm_scaling,
    "layer_scale": layer_scale,
    "mix_norm": pre_norm,  # a quarter of 3 layers, rounded down, is none
    "keel": keel,
    "complete_p": complete_p,
    "dlcl": pre_norm,
}
NORMS = {"layernorm": layer_norm, "rmsnorm": rms_norm}
UNFINISHED = {"post_norm", "rezero", "b2t", "deepnorm", "deepnorm_glm", "admin", "ds_init"}
UNFINISHED |= {"t_fixup", "keel"}  # no norm follows their last layer
CASES: list[tuple[str, dict[str, object], str, Callable[[Tensor, Layer], Tensor]]] = [
    *((name, {}, norm, equation) for name, equation in EQUATIONS.items() for norm in NORMS),
    ("rezero", {"final_norm": True}, "layernorm", rezero),
    ("b2t", {"init": "released"}, "layernorm", b2t),
    ("deepnorm", {"alpha": False}, "layernorm", post_norm),
    ("deepnorm", {"beta": False}, "layernorm", deepnorm),
    ("deepnorm", {"norm_lr": "depth", "encoder_constant": "torchscale"}, "layernorm", deepnorm),
    ("admin", {"init": "log"}, "layernorm", admin),
    ("ds_init", {"init": "released"}, "layernorm", post_norm),
    ("normformer", {"head_scale": "none"}, "layernorm", partial(normformer, heads="none")),
    ("normformer", {"head_scale": "released"}, "layernorm", partial(normformer, heads="after")),
    ("normformer", {"residual_scale": True}, "layernorm", partial(normformer, residual=True)),
    ("normformer", {"decoders_only": True}, "layernorm", normformer_as_released),
    ("sandwich", {"init": "released"}, "layernorm", sandwich),
    ("peri_norm", {"embedding_norm": False}, "layernorm", sandwich),
    ("mix_norm", {"share": 0.5}, "layernorm", mix_norm),
    ("complete_p", {"exponent": 0.5}, "layernorm", partial(complete_p, exponent=0.5)),
    ("complete_p", {"base_depth": 3}, "layernorm", partial(complete_p, base=3)),
]


def built(
    name: str, options: dict[str, object], norm: str, family: str, *, qk_norm: bool = False
) -> Transformer:
    rule = find(name)
    encoders, decoders = FAMILIES[family]
    model = Transformer(
        partial(rule.wire, options=options),
        partial(rule.stack, options=options),
        encoders=encoders,
        decoders=decoders,
        width=WIDTH,
        heads=HEADS,
        ffn=FFN,
        norm=norm,  # type: ignore[arg-type]
        dropout=0.0,
        vocabularies=VOCABULARIES,
        qk_norm=qk_norm,
    )
    initialise(model, seed=5)
    draw = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:  # biases, gains and scalars start at 0 and 1
                parameter.add_(0.5 * torch.randn(parameter.shape, generator=draw))
    return model


def stack(
    tokens_BT: Tensor,
    seen_BTT: Tensor,
    w: Weights,
    name: str,
    equation: Callable[[Tensor, Layer], Tensor],
    norm: Norm,
    *,
    final: bool,
    embedding: bool,
    dense: bool,
    memory: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    layers = {key.split(".")[3] for key in w if key.startswith(f"stacks.{name}.blocks.")}
    x_BTD = embed(tokens_BT, w, f"stacks.{name}.embedding.weight")
    if embedding:
        x_BTD = norm(x_BTD, w, f"stacks.{name}.embedding_norm")
    outputs = [x_BTD]
    for layer in range(len(layers)):
        if dense:
            x_BTD = combined(outputs, w[f"stacks.{name}.dense.weights.{layer}"])
        of = Layer(w, f"stacks.{name}.blocks.{layer}", norm, seen_BTT, memory)
        x_BTD = equation(x_BTD, of)
        if dense:
            outputs.append(norm(x_BTD, w, f"stacks.{name}.dense.norms.{layer}"))
    if dense:
        x_BTD = combined(outputs, w[f"stacks.{name}.dense.weights.{len(layers)}"])
    return norm(x_BTD, w, f"stacks.{name}.norm") if final else x_BTD


def combined(outputs: list[Tensor], weights: Tensor) -> Tensor:
    """w_0 e + w_1 LN(y_1) + ... + w_l LN(y_l)"""
    total = torch.zeros_like(outputs[0])
    for weight, output in zip(weights, outputs, strict=True):
        total = total + weight * output
    return total


def compare(
    name: str,
    options: dict[str, object],
    norm: str,
    equation: Callable[[Tensor, Layer], Tensor],
    family: str,
    *,
    qk_norm: bool = False,
) -> None:
    """The scheme's model beside its equation, on padded batches of tokens."""
    model = built(name, options, norm, family, qk_norm=qk_norm)
    w = {key: value.detach() for key, value in model.state_dict().items()}
    write_out = partial(
        stack,
        w=w,
        equation=equation,
        norm=NORMS[norm],
        final=bool(name not in UNFINISHED or options.get("final_norm")),
        embedding=name == "peri_norm" and options == {},
        dense=name == "dlcl",
    )
    inputs_BT = torch.tensor([[1, 7, 5, 12, 9], [1, 3, 3, 0, 0], [1, 6, 10, 8, 0]])
    source_BS = torch.tensor([[5, 9, 10, 7, 6, 8], [8, 5, 0, 0, 0, 0], [6, 6, 7, 5, 0, 0]])
    tokens_BT, tokens_BS = inputs_BT != 0, source_BS != 0
    B, T, S = *inputs_BT.shape, source_BS.shape[1]
    past_BTT = (torch.arange(T)[:, None] >= torch.arange(T)).expand(B, T, T)
    if family == "encoder":
        features_BTD = write_out(inputs_BT, tokens_BT[:, None].expand(B, T, T), name="encoder")
        logits_BTV = model(inputs_BT, tokens_BT)
    elif family == "decoder":
        features_BTD = write_out(inputs_BT, past_BTT, name="decoder")
        logits_BTV = model(inputs_BT, tokens_BT)
    else:
        memory_BSD = write_out(source_BS, tokens_BS[:, None].expand(B, S, S), name="encoder")
        memory = memory_BSD, tokens_BS[:, None].expand(B, T, S)
        features_BTD = write_out(inputs_BT, past_BTT, name="decoder", memory=memory)
        logits_BTV = model(inputs_BT, tokens_BT, source_BS, tokens_BS)

    expected_BTV = features_BTD @ w["output.weight"].T
    assert expected_BTV.std() > 0.1  # neither side has died out
    torch.testing.assert_close(logits_BTV, expected_BTV, rtol=1e-10, atol=1e-10)


SERVED = [
    (case, family) for case in CASES for family in FAMILIES if family in find(case[0]).families
]


@pytest.mark.parametrize(
    ("case", "family"),
    SERVED,
    ids=[f"{name}-{options}-{norm}-{family}" for (name, options, norm, _), family in SERVED],
)
def test_a_schemes_model_is_its_equation_written_out(
    case: tuple[str, dict[str, object], str, Callable[[Tensor, Layer], Tensor]], family: str
) -> None:
    compare(*case, family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "norm"), [("reordered", "rmsnorm"), ("pre_norm", "layernorm")])
def test_queries_and_keys_are_normalised_over_the_whole_width(
    name: str, norm: str, family: str
) -> None:
    compare(name, {}, norm, EQUATIONS[name], family, qk_norm=True)


def test_every_built_in_scheme_is_written_out_here() -> None:
    built_in = {
        name
        for name, rule in all_schemes().items()
        if rule.function.__module__.startswith("harness.schemes.")
    }
    assert set(EQUATIONS) == built_in, "write the new scheme's equation out, in EQUATIONS"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_equations_are_different_models(family: str) -> None:
    # So a transcription that agrees with its model agrees with no other. DS-Init is Post-Norm, and
    # Mix-LN of so few layers Pre-Norm, drawn otherwise or not.
    inputs_BT, source_BS = torch.tensor([[1, 7, 5, 12, 9]]), torch.tensor([[5, 9, 10, 7]])
    paired = (None, source_BS, None) if family == "encoder_decoder" else ()
    names = [n for n in EQUATIONS if family in find(n).families and n != "mix_norm"]
    outputs = {name: built(name, {}, "layernorm", family)(inputs_BT, *paired) for name in names}
    for one, other in itertools.combinations(names, 2):
        assert (outputs[one] - outputs[other]).abs().max() > 1e-2, (one, other)
