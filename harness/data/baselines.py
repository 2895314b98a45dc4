"""What can be had without depth: losses in nats per token of frequency tables. numpy only."""

import numpy as np

from harness.data.arrays import IGNORE, Array, Arrays, Task

UNIGRAM_COUNT, BIGRAM_COUNT = 1.0, 0.1  # added to every count


def losses(task: Task, sequences: int) -> tuple[float, float]:
    """(baseline, reference) on the validation tokens.

    Baseline: unigram or position-unigram frequencies, whichever is lower: the best without input.
    Reference: a bigram table, which reads the true token before each target.
    """
    sample, valid, size = task.sample(), task.valid(sequences), task.vocabularies[1]
    unigram = _loss(sample, valid, size, UNIGRAM_COUNT, lambda a: np.zeros_like(a.targets_BT))
    position = _loss(
        sample,
        valid,
        size,
        UNIGRAM_COUNT,
        lambda a: np.broadcast_to(np.arange(a.targets_BT.shape[1]), a.targets_BT.shape),
    )
    bigram = _loss(sample, valid, size, BIGRAM_COUNT, lambda a: a.previous_BT)
    return min(unigram, position), bigram


def _loss(sample: Arrays, valid: list[Arrays], size: int, added: float, condition) -> float:  # type: ignore[no-untyped-def]
    """Cross-entropy of the table p(target | condition) counted in `sample`, on `valid`."""
    given, target = _pairs(sample, condition)
    rows = 1 + max(int(given.max()), *(int(condition(a).max()) for a in valid))
    counts = np.bincount(given * size + target, minlength=rows * size).reshape(rows, size)
    log_p = np.log((counts + added) / (counts.sum(1, keepdims=True) + added * size))
    given, target = (
        np.concatenate(x) for x in zip(*(_pairs(a, condition) for a in valid), strict=True)
    )
    return float(-log_p[given, target].mean())


def _pairs(arrays: Arrays, condition) -> tuple[Array, Array]:  # type: ignore[no-untyped-def]
    kept = arrays.targets_BT != IGNORE
    return condition(arrays)[kept], arrays.targets_BT[kept]
