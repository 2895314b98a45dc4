"""Arrays as torch batches, in an order that depends on the seed alone."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from harness.data.arrays import IGNORE, PAD, Arrays, Task
from harness.data.ranks import ALONE, Ranks


class Batch(NamedTuple):
    """B sequences, T targets, S source tokens. Masks are True at tokens, None where all are."""

    inputs_BT: Tensor
    targets_BT: Tensor
    mask_BT: Tensor | None
    source_BS: Tensor | None
    source_mask_BS: Tensor | None
    group: str = ""

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
    """A rank's share of the first `batches` training batches of a seed: it takes its turn, so that
    the first n of all ranks are the first n times as many of one process. They divide `batches`."""

    def __init__(
        self, task: Task, seed: int, size: int, batches: int, ranks: Ranks = ALONE
    ) -> None:
        self.task, self.seed, self.size, self.batches = task, seed, size, batches
        self.ranks = ranks

    def __len__(self) -> int:
        return self.batches // self.ranks.count

    def __getitem__(self, index: int) -> Batch:
        turn = index * self.ranks.count + self.ranks.rank
        return as_batch(self.task.train(self.seed, turn, self.size))


def mask(tokens: Tensor | None) -> Tensor | None:
    """True at tokens, None where all are."""
    if tokens is None:
        return None
    real = tokens != PAD
    return None if real.all() else real
