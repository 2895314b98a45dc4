"""Tiny configs, a small corpus, and losses written by hand into a real training run."""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harness.training.module
import harness.training.train
from harness.data.arrays import IGNORE
from harness.data.baselines import Frequencies
from harness.data.batches import Batch
from harness.training.config import Config, parse
from harness.training.module import LanguageModule

torch.set_num_threads(1)

BASE: dict[str, Any] = {
    "scheme": "deepnorm",
    "seed": 0,
    "model": {"family": "decoder", "depth": 2, "width": 16, "heads": 2, "ffn": 32},
    "data": {"name": "reverse", "symbols": 8, "valid_sequences": 16},
    "optim": {"lr": 3e-3},
    "train": {"steps": 10, "batch": 6, "length": 8},
}


@pytest.fixture(scope="session")
def config() -> Callable[..., Config]:
    """config({"optim.lr": 1.0}) is the tiny config with these values at these dotted paths."""

    def make(changes: Mapping[str, Any] | None = None) -> Config:
        given = copy.deepcopy(BASE)
        for path, value in (changes or {}).items():
            *sections, field = path.split(".")
            table = given
            for section in sections:
                table = table.setdefault(section, {})
            table[field] = value
        return parse(given, "test")

    return make


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with words.txt: every window of it has as many targets as every other."""
    folder = tmp_path_factory.mktemp("corpus")
    words = np.random.default_rng(0).choice(["deep", "norm", "stack", "of", "a", "wide"], 1500)
    (folder / "words.txt").write_text(" ".join(words))
    return folder


@pytest.fixture(scope="session")
def text_data() -> dict[str, Any]:
    return {"name": "text", "path": "words.txt", "valid_windows": 8}


@pytest.fixture(scope="session")
def one_by_one() -> Callable[[Batch], list[Batch]]:
    """Each sequence of a batch as a batch of its own, without its padding."""

    def cut(x: Any, mask: Any, row: int) -> Any:
        return x[row : row + 1] if mask is None else x[row][mask[row]][None]

    def split(batch: Batch) -> list[Batch]:
        pairs = (
            (batch.inputs_BT, batch.mask_BT),
            (batch.targets_BT, batch.mask_BT),
            (batch.source_BS, batch.source_mask_BS),
        )
        found = []
        for row in range(len(batch.inputs_BT)):
            inputs, targets, source = (x if x is None else cut(x, m, row) for x, m in pairs)
            found.append(Batch(inputs, targets, None, source, None))
        return found

    return split


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that train() builds, in order: what they have become once it returns."""
    built: list[Any] = []
    build = harness.training.train.build

    def keep(*args: Any) -> Any:
        built.append(build(*args))
        return built[-1]

    monkeypatch.setattr(harness.training.train, "build", keep)
    return built


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes the loss of every training batch, of the last one after the last step (`closing`, else
    that before it) and of each validation, the last of `valid` again and again; gradients stay as
    they are, times a factor. A training loss is a number a step, or one for each of its batches.
    With `plateau` every batch's is that, whatever its targets."""

    def write(
        losses: Sequence[float | Sequence[float]],
        *,
        accumulation: int = 1,
        valid: float | Sequence[float] | None = None,
        closing: float | None = None,
        plateau: float | None = None,
        factors: Mapping[int, float] | None = None,
    ) -> None:
        true, calls = harness.training.module.cross_entropy, itertools.count()
        told = [valid] if isinstance(valid, float) else [*(valid or ())]
        validating: list[float] = []
        end = losses[-1] if closing is None else closing

        def scripted(logits: Any, targets: Any, smoothing: float = 0.0) -> Any:
            loss = true(logits, targets, smoothing)
            if not torch.is_grad_enabled():
                return torch.full_like(loss, validating[0]) if validating else loss
            step, batch = divmod(next(calls), accumulation)
            value = losses[step]
            told = value if isinstance(value, float) else value[batch]
            return (factors or {}).get(step, 1.0) * (loss - loss.detach()) + told

        def as_scripted(method: str, losses: Callable[[], list[float]]) -> None:
            true_method = getattr(LanguageModule, method)

            def call(*arguments: Any) -> Any:
                validating[:] = losses()
                found = true_method(*arguments)
                validating.clear()
                return found

            monkeypatch.setattr(LanguageModule, method, call)

        as_scripted("loss_after", lambda: [end if isinstance(end, float) else end[-1]])
        as_scripted("evaluate", lambda: [told.pop(0) if len(told) > 1 else told[0]] if told else [])
        monkeypatch.setattr(harness.training.module, "cross_entropy", scripted)
        if plateau is not None:
            flat = lambda _, arrays, smoothing=0.0: np.full(  # noqa: E731
                int((arrays.targets_BT != IGNORE).sum()), plateau
            )
            monkeypatch.setattr(Frequencies, "losses", flat)
            uncached = harness.training.train._load.__wrapped__
            monkeypatch.setattr(harness.training.train, "_load", uncached)

    return write
