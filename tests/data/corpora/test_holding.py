"""What is held out: by content, in whole groups, and no text of it elsewhere."""

import random

import pytest

from harness.data.corpora.holding import hold_out
from harness.errors import ConfigError

ROWS = [(f"quelle {i}", f"source {i}") for i in range(200)]


def linked() -> list[tuple[str, ...]]:
    """Rows of which many share a source or a target, some through others."""
    rows = [(f"q{i % 90}", f"s{i // 2}") for i in range(120)]
    return list(dict.fromkeys([*rows, ("Q5", "other"), ("only", ""), ("", "alone"), *ROWS]))


def test_what_is_held_out_does_not_depend_on_order() -> None:
    rows = linked()
    found = hold_out(rows, {"test": 30, "valid": 20})
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        assert hold_out(rows, {"valid": 20, "test": 30}) == found
    assert {split: len(held) for split, held in found.items()} == {"test": 30, "valid": 20}
    assert found["test"] != sorted(found["test"])  # in an order that says nothing of them


def test_how_many_validate_does_not_change_the_test() -> None:
    test = hold_out(ROWS, {"test": 30})["test"]
    assert hold_out(ROWS, {"test": 30, "valid": 50})["test"] == test
    assert hold_out(ROWS, {"test": 31})["test"][:30] == test


def test_no_text_of_a_side_is_in_two_splits() -> None:
    rows = linked()
    found = hold_out(rows, {"test": 60, "valid": 60})
    held = {row for split in found.values() for row in split}
    parts = [*found.values(), [row for row in rows if row not in held]]
    for column in (0, 1):
        texts = [{row[column].casefold() for row in part} - {""} for part in parts]
        assert sum(map(len, texts)) == len(set.union(*texts))
    assert sum(map(len, parts)) == len(rows)


def test_a_group_larger_than_what_a_split_lacks_stays_in_training() -> None:
    rows = [*((f"quelle {i}", "Yes.") for i in range(50)), *ROWS[100:]]
    found = hold_out(rows, {"test": 40, "valid": 10})
    assert not {"Yes."} & {target for split in found.values() for _, target in split}


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"test": 200}, "--hold-out test=200: 200 of 200 different pairs can be held out"),
        ({"test": 150, "valid": 51}, "--hold-out valid=51: 50 of 50 different pairs can be"),
    ],
)
def test_too_many_are_refused(sizes: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hold_out(ROWS, sizes)
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith("; hold out fewer")
