"""Whole stacks beside implementations of other people: the same weights, the same outputs.

torch's own layers are always there. torchscale (Microsoft, the authors of DeepNorm and Sub-LN) and
x-transformers (lucidrains) are installed by the Makefile; without them their tests are skipped.

Letters: B batch, T target length, S source length, D width.
"""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from harness.model.layers import Attention, Context, FeedForward
from harness.model.transformer import Stack
from harness.schemes import find, places
from tests.model.test_equations import FAMILIES, FFN, HEADS, WIDTH, built

# (family, stack): the decoder of a pair has cross-attention.
ALONE = [("encoder", "encoder"), ("decoder", "decoder")]
STACKS = [*ALONE, ("encoder_decoder", "encoder"), ("encoder_decoder", "decoder")]
of_every_stack = pytest.mark.parametrize(("family", "name"), STACKS, ids=map("-".join, STACKS))


@pytest.fixture(autouse=True)
def float64_without_gradients() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    with torch.no_grad():
        yield
    torch.set_default_dtype(torch.float32)


class Given(NamedTuple):
    """What both sides read. Masks are True at tokens; padding stands at the end."""

    x_BTD: Tensor
    tokens_BT: Tensor
    memory_BSD: Tensor
    tokens_BS: Tensor


@pytest.fixture
def given() -> Given:
    draw = torch.Generator().manual_seed(7)
    return Given(
        torch.randn(3, 5, WIDTH, generator=draw),
        torch.arange(5) < torch.tensor([5, 2, 4])[:, None],
        torch.randn(3, 6, WIDTH, generator=draw),
        torch.arange(6) < torch.tensor([6, 2, 5])[:, None],
    )


def agree(stack: Stack, given: Given, theirs_BTD: Tensor, *, tolerance: float) -> None:
    """Our blocks and final norm give what theirs gave, at every token."""
    x_BTD, context = given.x_BTD, Context(given.tokens_BT, given.memory_BSD, given.tokens_BS)
    for block in stack.blocks:
        x_BTD = block(x_BTD, context)
    x_BTD = x_BTD if stack.norm is None else stack.norm(x_BTD)
    seen_BT = given.tokens_BT
    assert theirs_BTD[seen_BT].std() > 0.1  # it has not died out
    torch.testing.assert_close(x_BTD[seen_BT], theirs_BTD[seen_BT], rtol=tolerance, atol=tolerance)


def copy(theirs: nn.Module, ours: nn.Module) -> None:
    """A linear map or a norm, all of it."""
    theirs.load_state_dict(ours.state_dict())


# torch


@of_every_stack
@pytest.mark.parametrize(("scheme", "norm_first"), [("post_norm", False), ("pre_norm", True)])
def test_stacks_are_those_of_torch(
    scheme: str, norm_first: bool, family: str, name: str, given: Given
) -> None:
    stack = built(scheme, {}, "layernorm", family).stacks[name]
    cross, causal = "cross" in stack.blocks[0], name == "decoder"
    options = {"dropout": 0.0, "activation": "relu", "layer_norm_eps": 1e-5, "batch_first": True}
    final = nn.LayerNorm(WIDTH, eps=1e-5) if norm_first else None
    if cross:
        layer = nn.TransformerDecoderLayer(WIDTH, HEADS, FFN, norm_first=norm_first, **options)
        theirs = nn.TransformerDecoder(layer, len(stack.blocks), final)
    else:
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FFN, norm_first=norm_first, **options)
        theirs = nn.TransformerEncoder(layer, len(stack.blocks), final, enable_nested_tensor=False)
    site = "input" if norm_first else "sum"
    for layer, block in zip(theirs.layers, stack.blocks, strict=True):
        attentions = [layer.self_attn, layer.multihead_attn] if cross else [layer.self_attn]
        for attention, kind in zip(attentions, ("self", "cross"), strict=False):
            f = block[kind].f
            attention.in_proj_weight.copy_(torch.cat([f.q.weight, f.k.weight, f.v.weight]))
            attention.in_proj_bias.copy_(torch.cat([f.q.bias, f.k.bias, f.v.bias]))
            copy(attention.out_proj, f.o)
        copy(layer.linear1, block["ffn"].f.up)
        copy(layer.linear2, block["ffn"].f.down)
        for place, residual in enumerate(block.values(), start=1):
            copy(getattr(layer, f"norm{place}"), residual.norms[site])
    if final is not None:
        copy(theirs.norm, stack.norm)

    future_TT = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    if cross:
        theirs_BTD = theirs(
            given.x_BTD,
            given.memory_BSD,
            tgt_mask=future_TT,
            tgt_key_padding_mask=~given.tokens_BT,
            memory_key_padding_mask=~given.tokens_BS,
        )
    else:
        theirs_BTD = theirs(
            given.x_BTD, mask=future_TT, src_key_padding_mask=~given.tokens_BT, is_causal=causal
        )
    agree(stack, given, theirs_BTD, tolerance=1e-10)


# torchscale

TORCHSCALE = {"deepnorm": {"deepnorm": True}, "sub_norm": {"subln": True}}


@pytest.fixture(scope="module")
def torchscale() -> Callable[..., nn.Module]:
    """A function that builds one of its stacks.

    It imports a few functions for training on many machines and for stochastic depth, which no
    forward pass here calls, from packages that need another torch: empty modules stand for them.
    """
    pytest.importorskip("torchscale", reason="torchscale is not installed: see the Makefile")
    with pytest.MonkeyPatch.context() as patch:
        unused = {
            "timm.models.layers": ["drop_path"],
            "fairscale.nn": ["checkpoint_wrapper", "wrap"],
        }
        for path, names in unused.items():
            parts = path.split(".")
            for length in range(1, len(parts) + 1):
                module = ModuleType(".".join(parts[:length]))
                patch.setitem(sys.modules, module.__name__, module)
            for name in names:
                setattr(module, name, None)
        patch.setitem(sys.modules, "apex", None)  # its LayerNorm, where installed, needs a GPU
        from torchscale.architecture import config, decoder, encoder

    def build(family: str, name: str, **flags: bool) -> nn.Module:
        encoders, decoders = FAMILIES[family]
        kinds = {"encoder": encoders, "decoder": decoders}
        sizes = {"embed_dim": WIDTH, "attention_heads": HEADS, "ffn_embed_dim": FFN}
        given: dict[str, Any] = {f"{kind}_{size}": n for kind in kinds for size, n in sizes.items()}
        given |= {f"{kind}_layers": layers for kind, layers in kinds.items()}
        make = {
            "encoder": config.EncoderConfig,
            "decoder": config.DecoderConfig,
            "encoder_decoder": config.EncoderDecoderConfig,
        }[family]
        given |= {"activation_fn": "relu", "layernorm_eps": 1e-5, "subln": False, **flags}
        stack = {"encoder": encoder.Encoder, "decoder": decoder.Decoder}[name]
        torch.manual_seed(8)
        return stack(make(**given), is_encoder_decoder=family == "encoder_decoder")

    return build


def torchscale_parts(layer: nn.Module, kind: str) -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """Its linear maps by our roles, and its norms by our sites; one of the norms stands where the
    scheme has it."""
    if kind == "ffn":
        linears = {"up": layer.ffn.fc1, "down": layer.ffn.fc2}
        return linears, {"inner": layer.ffn.ffn_layernorm, "own": layer.final_layer_norm}
    name = {"self": "self_attn", "cross": "encoder_attn"}[kind]
    f, own = getattr(layer, name), getattr(layer, f"{name}_layer_norm")
    linears = {"q": f.q_proj, "k": f.k_proj, "v": f.v_proj, "o": f.out_proj}
    return linears, {"inner": f.inner_attn_ln, "own": own}


@of_every_stack
@pytest.mark.parametrize("scheme", TORCHSCALE)
def test_stacks_are_those_of_torchscale(
    scheme: str, family: str, name: str, given: Given, torchscale: Callable[..., nn.Module]
) -> None:
    stack = built(scheme, {}, "layernorm", family).stacks[name]
    theirs = torchscale(family, name, **TORCHSCALE[scheme])
    for layer, block in zip(theirs.layers, stack.blocks, strict=True):
        for kind, residual in block.items():
            linears, norms = torchscale_parts(layer, kind)
            for role, linear in linears.items():
                copy(linear, getattr(residual.f, role))
            if kind == "cross" and scheme == "sub_norm":
                # Ours has a second norm here too; torchscale has it in self-attention only.
                assert norms["inner"] is None
                del residual.norms["inner"]
            for site, norm in residual.norms.items():
                copy(norms["inner" if site == "inner" else "own"], norm)
    if scheme == "sub_norm":
        copy(theirs.layer_norm, stack.norm)
    if name == "encoder":
        theirs_BTD = theirs(
            None, encoder_padding_mask=~given.tokens_BT, token_embeddings=given.x_BTD
        )["encoder_out"]
    else:
        memory = {"encoder_out": given.memory_BSD, "encoder_padding_mask": ~given.tokens_BS}
        theirs_BTD, _ = theirs(
            torch.zeros(given.x_BTD.shape[:2]),
            token_embeddings=given.x_BTD,
            encoder_out=memory if family == "encoder_decoder" else None,
            features_only=True,
        )
    # Its softmax and activations are float32 whatever the model's.
    agree(stack, given, theirs_BTD, tolerance=1e-5)


@of_every_stack
@pytest.mark.parametrize("scheme", TORCHSCALE)
def test_gains_are_the_factors_that_torchscale_puts_on_its_own_draws(
    scheme: str, family: str, name: str, torchscale: Callable[..., nn.Module]
) -> None:
    # Only the factors: its draws are torch's defaults, ours Xavier's.
    options = {"encoder_constant": "torchscale"} if scheme == "deepnorm" else {}
    plain, scaled = torchscale(family, name), torchscale(family, name, **TORCHSCALE[scheme])
    for at in places(*FAMILIES[family]):
        if at.stack != name:
            continue
        gain = find(scheme).wire(at, options).gain
        before, after = (
            torchscale_parts(theirs.layers[at.layer - 1], at.sublayer)[0]
            for theirs in (plain, scaled)
        )
        for role, linear in before.items():
            expected = getattr(gain, role) * linear.weight
            torch.testing.assert_close(after[role].weight, expected, rtol=1e-12, atol=0)


# x-transformers: what of its flags is a scheme of ours, given a stack's depth. It has none for
# sums without norms, second skips, norms of the output alone, or factors by layer; its learned
# combinations of layers depend on the input.

X_TRANSFORMERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "post_norm": lambda depth: {"pre_norm": False},
    "pre_norm": lambda depth: {},
    "sandwich": lambda depth: {"sandwich_norm": True},
    "deepnorm": lambda depth: {"pre_norm": False, "scale_residual_constant": (2 * depth) ** 0.25},
    "admin": lambda depth: {"pre_norm": False, "scale_residual": True},
    "layer_scale": lambda depth: {"use_layerscale": True},
    "complete_p": lambda depth: {"depth_scale_residual": 2 / depth},
    "keel": lambda depth: {"pre_and_post_norm": True, "scale_residual_constant": 2.0 * depth},
    "normformer": lambda depth: {
        "sandwich_norm": True,
        "ff_post_act_ln": True,
        "attn_head_scale": True,
        "cross_attn_head_scale": False,
    },
}
# In a pair DeepNorm's numbers are others, and KEEL has none.
SETTINGS = [
    (scheme, *stack)
    for scheme in X_TRANSFORMERS
    for stack in (ALONE if scheme in ("deepnorm", "keel") else STACKS)
]


@pytest.fixture(scope="module")
def x_transformers() -> ModuleType:
    # This import ignores warnings: theirs is of a torch function that they still use.
    return pytest.importorskip(
        "x_transformers", reason="x-transformers is not installed: see the Makefile"
    )


def unbiased(stack: Stack) -> None:
    """Takes the biases that x-transformers lacks: those of attention and of norms."""
    for module in stack.modules():
        if isinstance(module, Attention):
            for role in "qkvo":
                getattr(module, role).bias.zero_()
        elif isinstance(module, nn.LayerNorm):
            module.bias.zero_()


def copy_gamma(theirs: nn.Module, gamma: Tensor) -> None:
    theirs.gamma.copy_(gamma - float(theirs.unit_offset))


@pytest.mark.parametrize(("scheme", "family", "name"), SETTINGS, ids=map("-".join, SETTINGS))
def test_stacks_are_those_of_x_transformers(
    scheme: str, family: str, name: str, given: Given, x_transformers: ModuleType
) -> None:
    stack = built(scheme, {}, "layernorm", family).stacks[name]
    unbiased(stack)
    flags = X_TRANSFORMERS[scheme](len(stack.blocks))
    if scheme == "keel":  # its first layer is another, for which there is no flag
        del stack.blocks[0]
    cross = "cross" in stack.blocks[0]
    theirs = {"encoder": x_transformers.Encoder, "decoder": x_transformers.Decoder}[name](
        dim=WIDTH,
        depth=len(stack.blocks),
        heads=HEADS,
        attn_dim_head=WIDTH // HEADS,
        ff_mult=FFN / WIDTH,
        ff_custom_activation=nn.ReLU(),
        cross_attend=cross,
        **flags,
    )
    residuals = [residual for block in stack.blocks for residual in block.values()]
    for (norms, f, skip), residual in zip(theirs.layers, residuals, strict=True):
        wiring = residual.wiring
        if scheme == "normformer" and "output" not in wiring.norms:
            norms[1] = None  # the flag means every sublayer, the paper self-attention alone
        if scheme == "layer_scale":
            copy_gamma(f, residual.branch)
        if scheme == "admin":
            skip.residual_scale.copy_(residual.skip)
        f = getattr(f, "fn", f)  # inside its factor
        if isinstance(residual.f, FeedForward):
            up, down = (part for part in f.modules() if isinstance(part, nn.Linear))
            copy(up, residual.f.up)
            copy(down, residual.f.down)
            inner = f.ff[1]
        else:
            for role, linear in zip("qkvo", (f.to_q, f.to_k, f.to_v, f.to_out), strict=True):
                linear.weight.copy_(getattr(residual.f, role).weight)
            if scheme == "normformer" and "output" in wiring.norms:
                f.head_scale_params.copy_(residual.inner_scale[None, :, None, None])
            inner = None
        sites = {"input": norms[0], "output": norms[1], "sum": norms[2], "inner": inner}
        for site, norm in residual.norms.items():
            copy_gamma(sites[site], norm.weight)
    if stack.norm is not None:
        copy_gamma(theirs.final_norm, stack.norm.weight)

    context = {"context": given.memory_BSD, "context_mask": given.tokens_BS} if cross else {}
    # Its softmax, too, is float32.
    agree(stack, given, theirs(given.x_BTD, mask=given.tokens_BT, **context), tolerance=1e-5)
