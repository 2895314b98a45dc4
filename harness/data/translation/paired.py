"""Sentence pairs as token numbers. No torch.

Letters: B sequences, T targets a sequence, S source tokens a sequence.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.data.arrays import IGNORE, PAD, Array, Arrays


class Sentences(NamedTuple):
    """Token numbers of many sentences, one behind the other."""

    tokens: NDArray[np.int32]
    starts: Array  # and the end of the last

    @property
    def lengths(self) -> Array:
        return np.diff(self.starts)

    def take(self, rows: Array) -> "Sentences":
        lengths = self.lengths[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        return Sentences(self.tokens[np.repeat(self.starts[rows], lengths) + within], starts)

    def padded(self, rows: Array, fill: int) -> Array:
        """Shape: rows x the longest of them."""
        lengths = self.lengths[rows]
        column = np.arange(lengths.max())
        inside = column < lengths[:, None]
        at = np.where(inside, self.starts[rows][:, None] + column, 0)
        return np.where(inside, self.tokens[at], fill).astype(np.int64)


class Paired(NamedTuple):
    """Sentence pairs: a source ends with the end token, a target is between begin and end."""

    source: Sentences
    target: Sentences

    @property
    def costs(self) -> Array:
        """Tokens of the longer side of each pair; a target costs one less than it holds."""
        return np.maximum(self.source.lengths, self.target.lengths - 1)

    def take(self, rows: Array) -> "Paired":
        return Paired(self.source.take(rows), self.target.take(rows))

    def arrays(self, rows: Array, group: str = "") -> Arrays:
        whole_BT = self.target.padded(rows, PAD)
        inputs_BT, targets_BT = whole_BT[:, :-1].copy(), whole_BT[:, 1:]
        inputs_BT[targets_BT == PAD] = PAD  # the end is nowhere read
        targets_BT = np.where(targets_BT == PAD, IGNORE, targets_BT)
        return Arrays(inputs_BT, targets_BT, inputs_BT, self.source.padded(rows, PAD), group)


def joined(parts: Sequence[Paired]) -> Paired:
    """The pairs of all parts, in their order."""
    return Paired(*(_joined(side) for side in zip(*parts, strict=True)))


def by_length(pairs: Paired, rows: Array) -> Array:
    """Rows by cost, then by the lengths of both sides; ties stay in the order given."""
    keys = (pairs.source.lengths[rows], pairs.target.lengths[rows], pairs.costs[rows])
    return rows[np.lexsort(keys)]


def _joined(parts: Sequence[Sentences]) -> Sentences:
    starts = np.cumsum(np.concatenate([[0], *(part.lengths for part in parts)]))
    return Sentences(np.concatenate([part.tokens for part in parts]), starts)
