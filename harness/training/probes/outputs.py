"""Validation during a run, translations at its end, averaged weights, and the clock.

Series count the steps that had been taken. Letters: B sequences, S source positions.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor

from harness.data.arrays import BOS, EOS, MASK, PAD, UNKNOWN
from harness.data.batches import Batch, mask
from harness.data.translation.scores import HeldOut
from harness.data.translation.task import Parallel
from harness.data.translation.translations import Translated
from harness.model.decoding import decode
from harness.training.curves import Curves
from harness.training.module import LanguageModule
from harness.training.outcome import Detector

Log = Callable[[int, dict[str, float]], None]  # (step, scalars): to the tracker


class ValidationProbe(L.Callback):
    """Validation every `every` steps, and at the end of a run that has not diverged; told to the
    detector.

    Series loss/valid and, in an encoder-decoder, source_gain, both in nats per token.
    """

    def __init__(
        self, batches: list[Batch], every: int, detector: Detector, curves: Curves, log: Log
    ) -> None:
        self.batches, self.every, self.detector = batches, every, detector
        self.curves, self.tell = curves, log
        self.losses: list[float] = []
        self.final: dict[str, float] = {}
        self._step = 0

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        step = trainer.global_step
        if step == self._step or not due(trainer, self.every):
            return
        assert isinstance(pl_module, LanguageModule)
        self._step = step  # batches that only accumulate leave the step as it is
        self.final = self.measure(pl_module)
        self.losses.append(self.final["loss"])
        scalars = {"loss/valid": self.final["loss"]}
        if "source_gain" in self.final:
            scalars["source_gain"] = self.final["source_gain"]
        for series, value in scalars.items():
            self.curves.add(series, step, value)
        self.tell(step, scalars)
        if self.detector.validated(self.final["loss"]):
            trainer.should_stop = True

    def measure(self, module: LanguageModule) -> dict[str, float]:
        """Evaluates; before each batch the run may be told to end."""
        return module.evaluate(self.batches, lambda: self.tell(module.global_step, {}))


def due(trainer: L.Trainer, every: int) -> bool:
    """Whether a run validates at this step: each so many, and at its end if it has not diverged."""
    step = trainer.global_step
    end = step == trainer.max_steps or (every > 0 and step % every == 0)
    return end and not trainer.should_stop


class WeightAverage(L.Callback):
    """The mean of the weights at the last `count` validations takes the place of the last weights,
    before they are validated (checkpoint averaging, as arXiv:1706.03762 section 6.1)."""

    def __init__(self, count: int, every: int) -> None:
        self.every = every
        self._kept: deque[list[Tensor]] = deque(maxlen=count)
        self._step = 0

    @torch.no_grad()
    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        step = trainer.global_step
        if step == self._step or not due(trainer, self.every):
            return
        self._step = step  # batches that only accumulate leave the step as it is
        weights = list(pl_module.model.parameters())
        self._kept.append([p.detach().clone() for p in weights])
        if step == trainer.max_steps:
            for p, kept in zip(weights, zip(*self._kept, strict=True), strict=True):
                p.copy_(torch.stack(kept).mean(0))


class TranslationProbe(L.Callback):
    """Scores of the translated test split at the end of a run that has not diverged.

    BLEU and chrF are means over directions, and so are the BLEU of copying sources (`bleu_copy`)
    and of taking the translation of the nearest training source (`bleu_nearest`). Where the task
    has groups of directions, BLEU and chrF of each have its name at the end. `translations` are the
    texts that were scored.
    """

    def __init__(self, task: Parallel, validation: "ValidationProbe", log: Log) -> None:
        self.task, self.validation, self.tell = task, validation, log
        self.tests = task.tests  # before hours are spent: what needs no model
        self.scores: dict[str, float] = {}
        self.translations: list[Translated] = []
        self.signature: str | None = None  # sacrebleu's

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.should_stop or not self.validation.final:
            return
        found: dict[str, list[float]] = {}
        signatures = set()
        for test in self.tests:
            with trainer.precision_plugin.forward_context():
                texts = self.task.texts(self._translate(test, pl_module))
            self.translations += [
                Translated(test.direction, source, reference, text)
                for (source, reference), text in zip(test.pairs, texts, strict=True)
            ]
            score = test.score(texts)
            signatures.add(score.signature)
            numbers = {"bleu": score.bleu, "chrf": score.chrf}
            if test.group:
                numbers |= {f"{name}_{test.group}": value for name, value in numbers.items()}
            numbers |= {"bleu_copy": test.copied, "bleu_nearest": test.nearest}
            for name, value in numbers.items():
                found.setdefault(name, []).append(value)
        self.scores = {name: statistics.fmean(values) for name, values in found.items()}
        self.signature = " ".join(sorted(signatures)) or None

    def _translate(self, test: HeldOut, module: L.LightningModule) -> list[list[int]]:
        said: list[list[int]] = [[]] * len(test.pairs)
        for rows, source_BS, longest in self.task.sources(test):
            self.tell(module.global_step, {})  # nothing: but the run may be told to end
            source_BS = torch.from_numpy(source_BS).to(module.device)
            found = decode(
                module.model,
                source_BS,
                mask(source_BS),
                bos=BOS,
                eos=EOS,
                longest=longest,
                beam=self.task.options.beam,
                length_penalty=self.task.options.length_penalty,
                banned=(PAD, BOS, UNKNOWN, MASK, *self.task.tags),
            )
            for row, tokens in zip(rows.tolist(), found, strict=True):
                said[row] = tokens
        return said


class Clock(L.Callback):
    """Seconds in training steps; stands first, so that what follows a step is not counted."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self._start
