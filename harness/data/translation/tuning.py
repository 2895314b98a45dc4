"""Which training pairs a tuning validates on, in place of the validation split. No torch."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from harness.data.arrays import Array
from harness.data.corpora.tables import Corpus
from harness.errors import ConfigError

LARGEST_SHARE = 20  # at most one training pair in so many is held out

Direction = tuple[str, str]
Text = tuple[str, str]  # source, target


def held_out(
    corpus: Corpus,
    training: Mapping[Direction, Sequence[Text]],
    valid: Mapping[Direction, int],
) -> tuple[dict[Direction, Array], dict[Direction, Array]]:
    """Numbers of the training pairs of each direction, in their order: those held out, and those
    left to train on.

    Of each direction as many are held out as it has `valid` pairs, but at most a twentieth: those
    whose rows of the corpus have the smallest hashes. No direction trains on a row that another
    holds out. ConfigError if nothing can be held out.
    """
    rows = corpus.splits["train"]
    ranks = [hashlib.sha256("\t".join(row).encode()).digest() for row in rows]
    homes = {direction: _homes(corpus, direction, training[direction]) for direction in training}
    held: dict[Direction, Array] = {}
    for direction, home in homes.items():
        count = min(valid[direction], len(home) // LARGEST_SHARE)
        by_rank = sorted(range(len(home)), key=lambda i: ranks[home[i]])
        held[direction] = np.sort(np.array(by_rank[:count], np.int64))
    if not any(map(len, held.values())):
        raise ConfigError(
            f"data.corpus: {max(map(len, homes.values()))} training pairs of a direction are too "
            f"few for a tuning, which validates on one in {LARGEST_SHARE}; name a larger corpus, "
            "or tune nothing"
        )
    gone = {homes[direction][i] for direction, each in held.items() for i in each.tolist()}
    left = {
        direction: np.flatnonzero([row not in gone for row in home])
        for direction, home in homes.items()
    }
    return held, left


def _homes(corpus: Corpus, direction: Direction, pairs: Sequence[Text]) -> list[int]:
    """The first row of the training split that holds each pair."""
    at = corpus.columns.index(direction[0]), corpus.columns.index(direction[1])
    first: dict[Text, int] = {}
    for i, row in enumerate(corpus.splits["train"]):
        first.setdefault((row[at[0]], row[at[1]]), i)
    return [first[pair] for pair in pairs]
