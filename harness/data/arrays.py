"""What every task gives: arrays of token numbers, and the special tokens. numpy only.

Letters: B sequences, T targets a sequence, S source tokens a sequence.
"""

from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]
Validation = Literal["valid", "tuning"]  # or tokens for tuning: no run is reported on them

PAD, BOS, EOS, UNKNOWN, MASK = range(5)
SPECIALS = 5  # a task's own tokens count from here
IGNORE = -100  # a target that is no target


class Arrays(NamedTuple):
    """One batch. `previous_BT` is the true token before each target, as a bigram table reads it;
    validation losses of a named `group` are reported beside those of all."""

    inputs_BT: Array
    targets_BT: Array
    previous_BT: Array
    source_BS: Array | None = None
    group: str = ""

    def rows(self, start: int, stop: int) -> "Arrays":
        part = slice(start, stop)
        source_BS = None if self.source_BS is None else self.source_BS[part]
        return self._replace(
            inputs_BT=self.inputs_BT[part],
            targets_BT=self.targets_BT[part],
            previous_BT=self.previous_BT[part],
            source_BS=source_BS,
        )


class Task(Protocol):
    """A corpus in the form a family of models needs."""

    vocabularies: tuple[int, int]  # source, target
    sha: str  # of the content: two runs compare only if it is equal

    def train(self, seed: int, index: int, size: int) -> Arrays:
        """The index-th training batch: a function of seed and index alone. `size` is what
        `train.batch` counts: sequences, or tokens of a translation."""
        ...

    def valid(self, size: int) -> list[Arrays]:
        """The validation set in batches; the same for every seed."""
        ...

    def sample(self) -> Arrays:
        """Training targets to count frequencies in."""
        ...


def generator(stream: int, seed: int, index: int) -> np.random.Generator:
    """Independent streams: 0 training, 1 validation, 2 frequencies, 3 validation of a tuning."""
    return np.random.default_rng([stream, seed, index])
