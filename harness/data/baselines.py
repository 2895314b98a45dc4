"""What can be had without depth: losses in nats per token of frequency tables. numpy only."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.data.arrays import IGNORE, Array, Arrays, Task

UNIGRAM_COUNT, BIGRAM_COUNT = 1.0, 0.1  # added to every count

Condition = Callable[[Arrays], Array]  # a number for each target: what its frequencies depend on


class Frequencies:
    """p(target | condition) as counted in training targets, with `added` for every target.

    The table is sparse: a bigram table of 32,000 words would take 8 GB.
    """

    def __init__(self, sample: Arrays, words: int, added: float, condition: Condition) -> None:
        self._words, self._added, self._condition = words, added, condition
        given, target = self._pairs(sample)
        self._seen, self._counts = np.unique(given * words + target, return_counts=True)
        self._of_given = np.bincount(given)

    def losses(self, arrays: Arrays, smoothing: float = 0.0) -> NDArray[np.float64]:
        """-log p of each target that counts, in nats. With label smoothing, of the distribution
        that is best under that objective: (1 - smoothing) p, and the rest uniform."""
        given, target = self._pairs(arrays)
        asked = given * self._words + target
        at = np.searchsorted(self._seen, asked).clip(max=len(self._seen) - 1)
        count = np.where(self._seen[at] == asked, self._counts[at], 0)
        known = given < len(self._of_given)
        total = np.where(known, self._of_given[given.clip(max=len(self._of_given) - 1)], 0)
        p = (count + self._added) / (total + self._added * self._words)
        if smoothing:
            p = (1 - smoothing) * p + smoothing / self._words
        return -np.log(p)

    def _pairs(self, arrays: Arrays) -> tuple[Array, Array]:
        kept = arrays.targets_BT != IGNORE
        return self._condition(arrays)[kept], arrays.targets_BT[kept]


class Baselines(NamedTuple):
    """Losses on the validation tokens, and the predictors without input.

    `loss`: unigram or position-unigram frequencies, whichever is lower: the best without input.
    `reference`: a bigram table, which reads the true token before each target.
    `blind`: the two of which `loss` is the lower.
    """

    loss: float
    reference: float
    blind: tuple[Frequencies, Frequencies]


def baselines(task: Task, size: int) -> Baselines:
    """The baselines of a task; `size` is what `train.batch` counts."""
    sample, valid, words = task.sample(), task.valid(size), task.vocabularies[1]

    def loss(table: Frequencies) -> float:
        return float(np.concatenate([table.losses(arrays) for arrays in valid]).mean())

    unigram = Frequencies(sample, words, UNIGRAM_COUNT, _nothing)
    position = Frequencies(sample, words, UNIGRAM_COUNT, _position)
    bigram = Frequencies(sample, words, BIGRAM_COUNT, _previous)
    return Baselines(min(loss(unigram), loss(position)), loss(bigram), (unigram, position))


def _nothing(arrays: Arrays) -> Array:
    return np.zeros_like(arrays.targets_BT)


def _position(arrays: Arrays) -> Array:
    return np.broadcast_to(np.arange(arrays.targets_BT.shape[1]), arrays.targets_BT.shape)


def _previous(arrays: Arrays) -> Array:
    return arrays.previous_BT
