"""Whole stacks beside implementations of other people: the same weights, the same outputs.

Letters: B batch, T target length, S source length, D width.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from harness.model.layers import Context
from harness.model.transformer import Stack
from tests.model.test_equations import FFN, HEADS, WIDTH, built

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
