"""Hidden states: padding counts nowhere, and shares and entropies are what a longhand sum gives."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.data.batches import Batch, mask
from harness.training.config import Config
from harness.training.curves import Curves
from harness.training.probes import InitProbe, StateProbe
from harness.training.probes.states import token_share
from harness.training.train import build, train

HERE = Path()
PAIR = {"model.family": "encoder_decoder", "model.decoder_depth": 3}
FAMILIES = {"encoder": {"model.family": "encoder"}, "decoder": {}, "pair": PAIR}
LENGTHS, SOURCES = (6, 4, 6, 5), (3, 7, 5, 7)  # tokens of each sequence

every_family = pytest.mark.parametrize("family", FAMILIES)


def padded(family: str, *, more: int = 0) -> Batch:
    """Sequences of these lengths, with `more` positions of padding behind the longest."""
    draw = torch.Generator().manual_seed(0)

    def tokens(lengths: tuple[int, ...]) -> Tensor:
        x = torch.zeros(len(lengths), max(lengths) + more, dtype=torch.long)
        for row, length in enumerate(lengths):
            x[row, :length] = torch.randint(5, 13, (length,), generator=draw)
        return x

    inputs_BT = tokens(LENGTHS)
    source_BS = tokens(SOURCES) if family == "pair" else None
    return Batch(inputs_BT, inputs_BT.clone(), mask(inputs_BT), source_BS, mask(source_BS))


def model_of(family: str, config: Callable[..., Config], scheme: str = "pre_norm") -> Any:
    return build(config(FAMILIES[family] | {"scheme": scheme}), (13, 13)).double()


@torch.no_grad()
def moved(model: Any) -> None:
    draw = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p += 0.1 * torch.randn(p.shape, generator=draw, dtype=p.dtype)


def measured(model: Any, batch: Batch, *, move: bool = False) -> tuple[float | None, Curves]:
    """What the probe finds in a model that moves once, at step 1, or not at all."""
    curves = Curves()
    probe = StateProbe(batch, 1, 0, curves, lambda step, scalars: None)
    precision = SimpleNamespace(forward_context=nullcontext)
    trainer: Any = SimpleNamespace(
        global_step=0, max_steps=9, should_stop=False, precision_plugin=precision
    )
    module: Any = SimpleNamespace(model=model, device=torch.device("cpu"))
    probe.on_train_start(trainer, module)
    if move:
        moved(model)
        trainer.global_step = 1
        probe.on_train_batch_end(trainer, module)
    return probe.update_norm, curves


@every_family
def test_update_and_activations_are_those_of_the_sequences_one_by_one(
    family: str, config: Callable[..., Config], one_by_one: Callable[[Batch], list[Batch]]
) -> None:
    model, batch = model_of(family, config), padded(family)
    update, curves = measured(model, batch, move=True)
    model, squares, moves, starts = model_of(family, config), {}, 0.0, 0.0  # type: ignore[var-annotated]
    sequences = one_by_one(batch)
    for sequence in sequences:
        _, alone = measured(model, sequence)
        for stack in model.stacks:
            length = (
                sequence.source_BS.shape[1]
                if sequence.source_BS is not None and stack == "encoder"
                else sequence.inputs_BT.shape[1]
            )
            scale = torch.tensor(alone.values[f"activation_rms/{stack}"][0])
            squares.setdefault(stack, []).append((length, scale.square()))
    with torch.no_grad():
        before = [model.features(*sequence.model_inputs) for sequence in sequences]
        moved(model)
        after = [model.features(*sequence.model_inputs) for sequence in sequences]
    for a, b in zip(before, after, strict=True):
        moves, starts = moves + float((b - a).square().sum()), starts + float(a.square().sum())
    assert update == pytest.approx(math.sqrt(moves / starts), rel=1e-9)
    for stack, each in squares.items():
        mean = sum(n * square for n, square in each) / sum(n for n, _ in each)
        expected = mean.sqrt().tolist()
        assert curves.values[f"activation_rms/{stack}"][0] == pytest.approx(expected, rel=1e-6)


@every_family
def test_more_padding_changes_no_number(family: str, config: Callable[..., Config]) -> None:
    (update, few), (again, many) = (
        measured(model_of(family, config), padded(family, more=more), move=True) for more in (0, 3)
    )
    assert few.values.keys() == many.values.keys()
    assert again == pytest.approx(update, rel=1e-9)
    for series in few.values:
        assert many.array(series) == pytest.approx(few.array(series), rel=1e-9), series
    stacks = ("encoder", "decoder") if family == "pair" else (family,)
    expected = {f"{kind}/{s}" for kind in ("activation_rms", "token_share") for s in stacks}
    assert few.values.keys() == expected | set(["attention_entropy/decoder"] * (family == "pair"))


@torch.no_grad()
def test_more_padding_changes_nothing_of_cross_attentions_mean_square(
    config: Callable[..., Config],
) -> None:
    model, found = model_of("pair", config), []
    for more in (0, 3):
        probe, module = InitProbe(), SimpleNamespace(model=model)
        probe.on_train_start(None, module)  # type: ignore[arg-type]
        model(*padded("pair", more=more).model_inputs)
        probe.on_after_backward(None, module)  # type: ignore[arg-type]
        found.append(probe.cross)
    assert found[1] == pytest.approx(found[0], rel=1e-9) != 0.0


def test_the_token_share_is_what_differs_between_tokens_at_one_position() -> None:
    h_BTD = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
    mask_BT = torch.tensor([[t < n for t in range(6)] for n in (6, 4, 5, 1)])
    apart, all_ = 0.0, 0.0
    for t in range(6):
        rows = [h_BTD[b, t].double() for b in range(4) if mask_BT[b, t]]
        if len(rows) < 2:
            continue  # the last position of the longest sequence
        mean = sum(rows) / len(rows)
        apart += sum(float((h - mean).square().sum()) for h in rows)
        all_ += sum(float(h.square().sum()) for h in rows)
    assert token_share(h_BTD, mask_BT) == pytest.approx(apart / all_, rel=1e-12)
    assert 0.2 < apart / all_ < 0.95


def test_the_token_share_has_a_smallest_a_largest_and_no_value() -> None:
    x_BTD = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    assert token_share(x_BTD.expand(5, 3, 4), None) == pytest.approx(0.0, abs=1e-12)
    assert token_share(torch.cat((x_BTD, -x_BTD)), None) == pytest.approx(1.0, abs=1e-12)
    assert token_share(x_BTD, None) is None  # one sequence
    assert token_share(x_BTD.expand(2, 3, 4), torch.tensor([[True] * 3, [False] * 3])) is None


@pytest.mark.parametrize("scheme", ["pre_norm", "normformer", "sub_norm"])
@pytest.mark.parametrize("qk_norm", [False, True])
@torch.no_grad()
def test_the_weights_of_attention_reproduce_its_output(
    scheme: str, qk_norm: bool, config: Callable[..., Config]
) -> None:
    model = build(config(PAIR | {"scheme": scheme, "model.qk_norm": qk_norm}), (13, 13))
    moved(model)
    batch, seen = padded("pair"), []
    for block in model.stacks["decoder"].blocks:
        block["cross"].f.register_forward_hook(lambda f, args, out: seen.append((f, args, out)))
    model(*batch.model_inputs)
    assert len(seen) == 3
    for f, (x_BTD, context, inner), out_BTD in seen:
        weights_BHTS = f.weights(x_BTD, context)
        assert weights_BHTS.sum(-1) == pytest.approx(torch.ones(4, 2, 6).numpy(), abs=1e-6)
        heads_BHTK = weights_BHTS @ f.read(context.memory_BSD)[1]
        again_BTD = f.o(inner(heads_BHTK.transpose(1, 2).flatten(2)))
        assert again_BTD.numpy() == pytest.approx(out_BTD.numpy(), abs=1e-5)


@torch.no_grad()
def test_the_entropy_is_the_mean_over_tokens_and_heads_of_that_of_the_weights(
    config: Callable[..., Config], one_by_one: Callable[[Batch], list[Batch]]
) -> None:
    model, batch = model_of("pair", config, "post_norm"), padded("pair")
    moved(model)
    _, curves = measured(model, batch)
    totals, count = torch.zeros(3, dtype=torch.float64), 0
    for sequence in one_by_one(batch):
        seen: list[Any] = []
        handles = [
            block["cross"].f.register_forward_hook(lambda f, args, _, s=seen: s.append((f, args)))
            for block in model.stacks["decoder"].blocks
        ]
        model(*sequence.model_inputs)
        for handle in handles:
            handle.remove()
        for layer, (f, (x_BTD, context, _)) in enumerate(seen):
            q_TD, k_SD = f.q(x_BTD[0]), f.k(context.memory_BSD[0])
            for head in (slice(0, 8), slice(8, 16)):
                p_TS = (q_TD[:, head] @ k_SD[:, head].T / math.sqrt(8)).softmax(-1)
                totals[layer] -= (p_TS * p_TS.log()).sum() / 2
        count += sequence.inputs_BT.shape[1]
    expected = (totals / count).tolist()
    assert curves.values["attention_entropy/decoder"] == [pytest.approx(expected, rel=1e-9)]
    assert max(expected) < math.log(7)


def test_weights_that_see_nothing_are_even(config: Callable[..., Config]) -> None:
    model = model_of("pair", config)
    for block in model.stacks["decoder"].blocks:
        torch.nn.init.zeros_(block["cross"].f.q.weight)
    _, curves = measured(model, padded("pair"))
    even = sum(n * math.log(s) for n, s in zip(LENGTHS, SOURCES, strict=True)) / sum(LENGTHS)
    assert curves.values["attention_entropy/decoder"] == [pytest.approx([even] * 3, rel=1e-9)]


def test_shares_are_measured_early_at_validations_and_at_the_end(
    config: Callable[..., Config],
) -> None:
    c = config(PAIR | {"train.steps": 50, "train.validate_every": 15, "train.accumulation": 2})
    curves = train(c, HERE).curves
    for series in ("token_share/encoder", "token_share/decoder", "attention_entropy/decoder"):
        assert curves.steps[series] == [0, 15, 20, 30, 40, 45, 50]
    assert curves.steps["source_gain"] == [15, 30, 45, 50]
    assert curves.array("token_share/decoder").shape == (7,)
    assert curves.array("attention_entropy/decoder").shape == (7, 3)


def test_a_run_that_ends_early_is_measured_there_once(
    config: Callable[..., Config], script: Callable[..., None]
) -> None:
    script([2.0] * 19 + [math.nan])
    record, curves, _ = train(config({"train.steps": 30}), HERE)
    assert record["diverged_at"] == 19
    assert curves.steps["token_share/decoder"] == [0, 20]
    assert "attention_entropy/decoder" not in curves.steps


def test_a_pair_without_cross_attention_has_shares_and_no_entropy(
    config: Callable[..., Config],
) -> None:
    _, curves, _ = train(config(PAIR | {"model.cross_attention": False, "train.steps": 1}), HERE)
    assert curves.steps["token_share/encoder"] == curves.steps["token_share/decoder"] == [0, 1]
    assert "attention_entropy/decoder" not in curves.steps
