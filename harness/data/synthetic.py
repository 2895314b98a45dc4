"""Seeded tasks with exact answers: reversing a sequence, and recalling values by key. numpy only.

A task is a generator of (source, target) pairs. An encoder-decoder gets them as they are; a decoder
gets one sequence, source and target with a separator between, and only the target counts; an
encoder, where both are of one length, says each target at the place of a source token.
"""

import hashlib
from abc import abstractmethod
from typing import Literal

import numpy as np

from harness.data.arrays import (
    BOS,
    EOS,
    IGNORE,
    PAD,
    SPECIALS,
    Array,
    Arrays,
    Validation,
    generator,
)
from harness.fields import Positive, Strict

FREQUENCY_SEQUENCES = 4096  # drawn to count target frequencies in


class Synthetic(Strict):
    """A generator of pairs; `symbols` is the size of its alphabet."""

    symbols: Positive = 16
    valid_sequences: Positive = 256

    @property
    @abstractmethod
    def tokens(self) -> int: ...

    @abstractmethod
    def pair(self, draw: np.random.Generator, length: int) -> tuple[Array, Array]: ...


class Reverse(Synthetic):
    """A sequence of half of `train.length` to `train.length` symbols, to be said backwards."""

    name: Literal["reverse"]

    @property
    def tokens(self) -> int:
        return self.symbols

    def pair(self, draw: np.random.Generator, length: int) -> tuple[Array, Array]:
        size = draw.integers((length + 1) // 2, length + 1)
        source = SPECIALS + draw.integers(0, self.symbols, size)
        return source, source[::-1]


class Recall(Synthetic):
    """Key and value pairs, then the keys in another order: their values are to be said.

    A source has three tokens for each key: at least one key, at most `train.length` tokens.
    """

    name: Literal["recall"]

    @property
    def tokens(self) -> int:
        return 2 * self.symbols  # keys, then values

    def pair(self, draw: np.random.Generator, length: int) -> tuple[Array, Array]:
        most = max(1, min(self.symbols, length // 3))
        size = draw.integers((most + 1) // 2, most + 1)
        keys = SPECIALS + draw.permutation(self.symbols)[:size]
        values = SPECIALS + self.symbols + draw.integers(0, self.symbols, size)
        order = draw.permutation(size)
        source = np.concatenate([np.stack([keys, values], axis=1).ravel(), keys[order]])
        return source, values[order]


class Pairs:
    """A synthetic task as batches for a family of models. The validation of a tuning has a stream
    of its own, so that nothing is left out of training."""

    def __init__(
        self, options: Synthetic, family: str, length: int, held_out: Validation = "valid"
    ) -> None:
        self._stream = 3 if held_out == "tuning" else 1
        self.vocabularies = (SPECIALS + options.tokens,) * 2
        self.sha = synthetic_sha(options)
        self._options, self._family, self._length = options, family, length

    def train(self, seed: int, index: int, sequences: int) -> Arrays:
        return self._batch(generator(0, seed, index), sequences)

    def valid(self, sequences: int) -> list[Arrays]:
        total, draw = self._options.valid_sequences, generator(self._stream, 0, 0)
        return [self._batch(draw, min(sequences, total - i)) for i in range(0, total, sequences)]

    def sample(self) -> Arrays:
        return self._batch(generator(2, 0, 0), FREQUENCY_SEQUENCES)

    def _batch(self, draw: np.random.Generator, sequences: int) -> Arrays:
        pairs = [self._options.pair(draw, self._length) for _ in range(sequences)]
        if self._family == "encoder":
            said = [target for _, target in pairs]
            previous = _pad([np.concatenate([[BOS], target[:-1]]) for target in said], PAD)
            return Arrays(_pad([source for source, _ in pairs], PAD), _pad(said, IGNORE), previous)
        targets = [np.append(target, EOS) for _, target in pairs]
        inputs = [np.concatenate([[BOS], target]) for _, target in pairs]
        if self._family == "encoder_decoder":
            source_BS = _pad([source for source, _ in pairs], PAD)
            inputs_BT = _pad(inputs, PAD)
            return Arrays(inputs_BT, _pad(targets, IGNORE), inputs_BT, source_BS)
        joined = [np.concatenate([s, i]) for (s, _), i in zip(pairs, inputs, strict=True)]
        silent = [
            np.concatenate([np.full(len(s), IGNORE), t])
            for (s, _), t in zip(pairs, targets, strict=True)
        ]
        inputs_BT = _pad(joined, PAD)
        return Arrays(inputs_BT, _pad(silent, IGNORE), inputs_BT)


def synthetic_sha(options: Synthetic) -> str:
    """Hash of what the generator says."""
    draw = generator(2, 0, 0)
    digest = hashlib.sha256(repr(options).encode())
    for length in (8, 33):
        for part in options.pair(draw, length):
            digest.update(part.tobytes())
    return digest.hexdigest()[:12]


def _pad(rows: list[Array], fill: int) -> Array:
    padded = np.full((len(rows), max(map(len, rows))), fill, dtype=np.int64)
    for padded_row, row in zip(padded, rows, strict=True):
        padded_row[: len(row)] = row
    return padded
