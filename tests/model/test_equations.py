"""Every scheme's whole model against its equation written out longhand, in float64.

Nothing here is shared with the model: attention, norms, positions and layers are spelled out from
weights read by name. Biases, gains and ReZero's scalars are random, so that none of them can hide.

Letters: B batch, T target length, S source length, D width, H heads, K head width.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from harness.model.initialise import initialise
from harness.model.transformer import Transformer
from harness.schemes import find

torch.set_num_threads(1)

WIDTH, HEADS, FFN, VOCABULARIES = 8, 2, 12, (11, 13)
FAMILIES = {"encoder": (3, 0), "decoder": (0, 3), "encoder_decoder": (2, 3)}
Weights = dict[str, Tensor]
Norm = Callable[[Tensor, Weights, str], Tensor]


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


def attention(x_BTD: Tensor, source_BSD: Tensor, seen_BTS: Tensor, w: Weights, name: str) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V, one head after the other, over the positions that are seen."""
    q_BTD, k_BSD, v_BSD = (
        linear(y, w, f"{name}.{role}")
        for role, y in (("q", x_BTD), ("k", source_BSD), ("v", source_BSD))
    )
    width = WIDTH // HEADS
    heads = []
    for head in range(HEADS):
        mine = slice(head * width, (head + 1) * width)
        scores_BTS = q_BTD[..., mine] @ k_BSD[..., mine].mT / math.sqrt(width)
        scores_BTS = torch.where(seen_BTS, scores_BTS, -math.inf)
        heads.append(torch.softmax(scores_BTS, dim=-1) @ v_BSD[..., mine])
    return linear(torch.cat(heads, dim=-1), w, f"{name}.o")


def feed_forward(x: Tensor, w: Weights, name: str) -> Tensor:
    return linear(torch.relu(linear(x, w, f"{name}.up")), w, f"{name}.down")


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

    def attend(self, x: Tensor) -> Tensor:
        return attention(x, x, self.seen_BTT, self.w, f"{self.name}.self.f")

    def cross(self, x: Tensor) -> Tensor:
        assert self.memory is not None
        memory_BSD, seen_BTS = self.memory
        return attention(x, memory_BSD, seen_BTS, self.w, f"{self.name}.cross.f")

    def ffn(self, x: Tensor) -> Tensor:
        return feed_forward(x, self.w, f"{self.name}.ffn.f")

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


EQUATIONS = {
    "post_norm": post_norm,
    "pre_norm": pre_norm,
    "rezero": rezero,
    "b2t": b2t,
    "deepnorm": deepnorm,
}
NORMS = {"layernorm": layer_norm, "rmsnorm": rms_norm}
CASES = [
    *((name, {}, "layernorm", name) for name in EQUATIONS),
    *((name, {}, "rmsnorm", name) for name in EQUATIONS),
    ("rezero", {"final_norm": True}, "layernorm", "rezero"),
    ("b2t", {"init": "released"}, "layernorm", "b2t"),
    ("deepnorm", {"alpha": False}, "layernorm", "post_norm"),
    ("deepnorm", {"beta": False}, "layernorm", "deepnorm"),
]


def built(name: str, options: dict[str, object], norm: str, family: str) -> Transformer:
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
    memory: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    layers = {key.split(".")[3] for key in w if key.startswith(f"stacks.{name}.blocks.")}
    x_BTD = embed(tokens_BT, w, f"stacks.{name}.embedding.weight")
    for layer in range(len(layers)):
        x_BTD = equation(x_BTD, Layer(w, f"stacks.{name}.blocks.{layer}", norm, seen_BTT, memory))
    return norm(x_BTD, w, f"stacks.{name}.norm") if final else x_BTD


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "options", "norm", "equation"), CASES)
def test_a_schemes_model_is_its_equation_written_out(
    name: str, options: dict[str, object], norm: str, equation: str, family: str
) -> None:
    model = built(name, options, norm, family)
    w = {key: value.detach() for key, value in model.state_dict().items()}
    final = name == "pre_norm" or options.get("final_norm", False)
    write_out = partial(stack, w=w, equation=EQUATIONS[equation], norm=NORMS[norm], final=final)

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


@pytest.mark.parametrize("family", FAMILIES)
def test_the_five_equations_are_five_different_models(family: str) -> None:
    # So a transcription that agrees with its model agrees with no other.
    inputs_BT, source_BS = torch.tensor([[1, 7, 5, 12, 9]]), torch.tensor([[5, 9, 10, 7]])
    paired = (None, source_BS, None) if family == "encoder_decoder" else ()
    outputs = [built(name, {}, "layernorm", family)(inputs_BT, *paired) for name in EQUATIONS]
    for one in range(len(outputs)):
        for other in range(one):
            assert (outputs[one] - outputs[other]).abs().max() > 1e-2
