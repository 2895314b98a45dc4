"""Which rows of a corpus are held out: decided by what they hold, not by where they stand."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from harness.errors import ConfigError

Row = tuple[str, ...]
HELD = ("test", "valid")  # test first: how many validate does not change it


def hold_out(rows: Sequence[Row], sizes: Mapping[str, int]) -> dict[str, list[Row]]:
    """So many of different rows for each split, in the order of a hash of their texts.

    Rows that share a text of a column, in capitals or not, stay together, so that no split holds a
    text of another: a group larger than what a split still lacks is left in training. ConfigError
    if there are not so many rows, or if none is left.
    """
    keys = {row: hashlib.sha256("\t".join(row).encode()).digest() for row in rows}
    groups = [sorted(group, key=keys.__getitem__) for group in _groups(rows)]
    groups.sort(key=lambda group: keys[group[0]])
    found: dict[str, list[Row]] = {}
    for split in (each for each in HELD if each in sizes):
        taken: list[Row] = []
        left = []
        for group in groups:
            if len(taken) + len(group) <= sizes[split]:
                taken += group
            else:
                left.append(group)
        if len(taken) < sizes[split] or not left:
            raise ConfigError(
                f"--hold-out {split}={sizes[split]}: {len(taken)} of {sum(map(len, groups))} "
                "different pairs can be held out (pairs that share a side stay together); "
                "hold out fewer"
            )
        found[split], groups = taken, left
    return found


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows, together where they share a text of a column, or where others link them."""
    above = list(range(len(rows)))

    def top(i: int) -> int:
        while above[i] != i:
            above[i] = above[above[i]]
            i = above[i]
        return i

    first: dict[tuple[int, str], int] = {}
    for i, row in enumerate(rows):
        for column, text in enumerate(row):
            if text:
                above[top(i)] = top(first.setdefault((column, text.casefold()), i))
    groups = defaultdict(list)
    for i, row in enumerate(rows):
        groups[top(i)].append(row)
    return list(groups.values())
