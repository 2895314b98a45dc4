"""What can be had without depth: losses in nats per token of frequency tables. numpy only."""

import numpy as np

from harness.data.arrays import IGNORE, Array, Arrays, Task

UNIGRAM_COUNT, BIGRAM_COUNT = 1.0, 0.1  # added to every count


def losses(task: Task, size: int) -> tuple[float, float]:
    """(baseline, reference) on the validation tokens.

    Baseline: unigram or position-unigram frequencies, whichever is lower: the best without input.
    Reference: a bigram table, which reads the true token before each target.
    """
    sample, valid, words = task.sample(), task.valid(size), task.vocabularies[1]
    unigram = _loss(sample, valid, words, UNIGRAM_COUNT, lambda a: np.zeros_like(a.targets_BT))
    position = _loss(
        sample,
        valid,
        words,
        UNIGRAM_COUNT,
        lambda a: np.broadcast_to(np.arange(a.targets_BT.shape[1]), a.targets_BT.shape),
    )
    bigram = _loss(sample, valid, words, BIGRAM_COUNT, lambda a: a.previous_BT)
    return min(unigram, position), bigram


def _loss(sample: Arrays, valid: list[Arrays], words: int, added: float, condition) -> float:  # type: ignore[no-untyped-def]
    """Cross-entropy of the table p(target | condition) counted in `sample`, on `valid`.

    The table is sparse: a bigram table of 32,000 words would take 8 GB.
    """
    given, target = _pairs(sample, condition)
    seen, counts = np.unique(given * words + target, return_counts=True)
    of_given = np.bincount(given)
    given, target = (
        np.concatenate(x) for x in zip(*(_pairs(a, condition) for a in valid), strict=True)
    )
    asked = given * words + target
    at = np.searchsorted(seen, asked).clip(max=len(seen) - 1)
    count = np.where(seen[at] == asked, counts[at], 0)
    total = np.where(given < len(of_given), of_given[given.clip(max=len(of_given) - 1)], 0)
    return float(-np.log((count + added) / (total + added * words)).mean())


def _pairs(arrays: Arrays, condition) -> tuple[Array, Array]:  # type: ignore[no-untyped-def]
    kept = arrays.targets_BT != IGNORE
    return condition(arrays)[kept], arrays.targets_BT[kept]
