"""Arrays as torch batches, in an order that depends on the seed alone."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from harness.data.arrays import IGNORE, PAD, Arrays, Task
from harness.data.baselines import Frequencies
from harness.data.ranks import ALONE, Ranks


class Batch(NamedTuple):
    """B sequences, T targets, S source tokens. Masks are True at tokens, None where all are.

    Of a training batch: `weight` is its share of the targets of its step, times the batches of the
    step; `plateau` is what the better and the worse of two predictors without input have on its
    targets, nats in all.
    """

    inputs_BT: Tensor
    targets_BT: Tensor
    mask_BT: Tensor | None
    source_BS: Tensor | None
    source_mask_BS: Tensor | None
    group: str = ""
    weight: float = 1.0
    plateau: tuple[float, float] = (0.0, 0.0)

    @property
    def model_inputs(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        return self.inputs_BT, self.mask_BT, self.source_BS, self.source_mask_BS

    @property
    def targets(self) -> int:
        """Targets that count."""
        return int((self.targets_BT != IGNORE).sum())

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(x.to(device) if isinstance(x, Tensor) else x for x in self))


def as_batch(arrays: Arrays) -> Batch:
    inputs_BT, source_BS = torch.from_numpy(arrays.inputs_BT), None
    if arrays.source_BS is not None:
        source_BS = torch.from_numpy(arrays.source_BS)
    return Batch(
        inputs_BT,
        torch.from_numpy(arrays.targets_BT),
        mask(inputs_BT),
        source_BS,
        mask(source_BS),
        arrays.group,
    )


class TrainingBatches(Dataset[Batch]):
    """A rank's share of the first training batches of a seed: it takes its turn, so that the first
    n of all ranks are the first n times as many of one process.

    A step has `accumulation` batches, which the number of ranks divides, and there are `steps`.
    `blind` and `smoothing` say what a batch's plateau is.
    """

    def __init__(
        self,
        task: Task,
        seed: int,
        size: int,
        steps: int,
        *,
        accumulation: int = 1,
        ranks: Ranks = ALONE,
        blind: Sequence[Frequencies] = (),
        smoothing: float = 0.0,
    ) -> None:
        self.task, self.seed, self.size, self.steps = task, seed, size, steps
        self.accumulation, self.ranks = accumulation, ranks
        self.blind, self.smoothing = blind, smoothing
        # The batches of a step are asked for one after the other, and weighed against each other.
        self._step = lru_cache(maxsize=1)(self._drawn)

    def __len__(self) -> int:
        return self.steps * self.accumulation // self.ranks.count

    def __getitem__(self, index: int) -> Batch:
        step, turn = divmod(index * self.ranks.count + self.ranks.rank, self.accumulation)
        batches = self._step(step)
        targets = [int((arrays.targets_BT != IGNORE).sum()) for arrays in batches]
        return as_batch(batches[turn])._replace(
            weight=targets[turn] * self.accumulation / sum(targets),
            plateau=self._plateau(batches[turn]),
        )

    def _drawn(self, step: int) -> list[Arrays]:
        turns = range(step * self.accumulation, (step + 1) * self.accumulation)
        return [self.task.train(self.seed, turn, self.size) for turn in turns]

    def _plateau(self, arrays: Arrays) -> tuple[float, float]:
        found = [float(table.losses(arrays, self.smoothing).sum()) for table in self.blind]
        return min(found, default=0.0), max(found, default=0.0)


def mask(tokens: Tensor | None) -> Tensor | None:
    """True at tokens, None where all are."""
    if tokens is None:
        return None
    real = tokens != PAD
    return None if real.all() else real
