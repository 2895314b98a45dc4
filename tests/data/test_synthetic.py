"""Reversal and recall: the answers are right, and both forms of a task say the same."""

from collections.abc import Iterator

import numpy as np
import pytest

from harness.data.arrays import BOS, EOS, IGNORE, PAD, SPECIALS, Arrays
from harness.data.synthetic import Pairs, Recall, Reverse, synthetic_sha
from harness.data.tasks import FAMILIES

TASKS = {"reverse": Reverse(name="reverse"), "recall": Recall(name="recall")}
every_task = pytest.mark.parametrize("name", TASKS)
every_served = pytest.mark.parametrize(
    ("name", "family"), [(name, family) for name in TASKS for family in FAMILIES[name]]
)
LENGTH = 15


def pairs(name: str, family: str, length: int = LENGTH) -> Pairs:
    return Pairs(TASKS[name], family, length)


def rows(batch: Arrays) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """(source, inputs, targets) of each pair, without what fills them up."""
    assert batch.source_BS is not None
    for source, inputs, targets in zip(
        batch.source_BS, batch.inputs_BT, batch.targets_BT, strict=True
    ):
        yield (
            [int(token) for token in source if token != PAD],
            [int(token) for token in inputs if token != PAD],
            [int(token) for token in targets if token != IGNORE],
        )


def equal(one: Arrays, other: Arrays) -> bool:
    return all(
        (a is None and b is None) or np.array_equal(a, b)  # type: ignore[arg-type]
        for a, b in zip(one, other, strict=True)
    )


def test_reverse_says_the_source_backwards_and_ends() -> None:
    lengths = set()
    for source, inputs, targets in rows(pairs("reverse", "encoder_decoder").train(0, 0, 300)):
        assert targets == [*reversed(source), EOS]
        assert inputs == [BOS, *reversed(source)]
        assert all(SPECIALS <= token < SPECIALS + 16 for token in source)
        lengths.add(len(source))
    assert lengths == set(range(8, 16))  # half of train.length to train.length


def test_reverse_for_an_encoder_says_the_source_backwards_in_its_own_places() -> None:
    batch = pairs("reverse", "encoder").train(0, 0, 300)
    assert batch.source_BS is None
    lengths = set()
    for inputs, targets, previous in zip(
        batch.inputs_BT, batch.targets_BT, batch.previous_BT, strict=True
    ):
        size = int((inputs != PAD).sum())
        source, rest = inputs[:size].tolist(), len(inputs) - size
        assert all(SPECIALS <= token < SPECIALS + 16 for token in source)
        assert inputs.tolist() == source + [PAD] * rest
        assert targets.tolist() == source[::-1] + [IGNORE] * rest
        assert previous[:size].tolist() == [BOS, *source[::-1][:-1]]
        lengths.add(size)
    assert lengths == set(range(8, 16))


def test_an_encoder_is_asked_what_a_pair_is_asked() -> None:
    apart = pairs("reverse", "encoder_decoder").train(2, 5, 40)
    alone = pairs("reverse", "encoder").train(2, 5, 40)
    assert apart.source_BS is not None
    assert np.array_equal(alone.inputs_BT, apart.source_BS)
    for wanted, (_, _, targets) in zip(alone.targets_BT, rows(apart), strict=True):
        assert [*wanted[wanted != IGNORE], EOS] == targets


def test_a_reversal_of_one_symbol_has_no_padding_column_to_spare() -> None:
    batch = pairs("reverse", "encoder", length=1).train(0, 0, 5)
    assert batch.inputs_BT.shape == batch.targets_BT.shape == (5, 1)
    assert np.array_equal(batch.inputs_BT, batch.targets_BT)
    assert batch.previous_BT.tolist() == [[BOS]] * 5


def test_recall_answers_each_key_asked_with_its_value() -> None:
    counts = set()
    for source, inputs, targets in rows(pairs("recall", "encoder_decoder").train(0, 0, 300)):
        assert len(source) <= LENGTH
        size = len(source) // 3
        keys, values, asked = source[0 : 2 * size : 2], source[1 : 2 * size : 2], source[2 * size :]
        assert len(set(keys)) == size
        assert sorted(asked) == sorted(keys)
        assert all(SPECIALS <= key < SPECIALS + 16 for key in keys)
        assert all(SPECIALS + 16 <= value < SPECIALS + 32 for value in values)
        table = dict(zip(keys, values, strict=True))
        assert targets == [*(table[key] for key in asked), EOS]
        assert inputs == [BOS, *targets[:-1]]
        counts.add(size)
    assert counts == {3, 4, 5}


def test_recall_asks_in_another_order_than_it_told() -> None:
    orders = [
        source[0 : 2 * (len(source) // 3) : 2] == source[2 * (len(source) // 3) :]
        for source, _, _ in rows(pairs("recall", "encoder_decoder").train(0, 0, 300))
    ]
    assert sum(orders) < 100  # at three keys, one order in six is the same


def test_a_task_has_room_for_every_token_it_says() -> None:
    assert pairs("reverse", "decoder").vocabularies == (SPECIALS + 16,) * 2
    assert pairs("recall", "decoder").vocabularies == (SPECIALS + 32,) * 2
    for name in TASKS:
        batch = pairs(name, "encoder_decoder").sample()
        assert batch.source_BS is not None
        spoken = set(batch.source_BS.ravel()) | set(batch.inputs_BT.ravel())
        assert max(spoken) == pairs(name, "decoder").vocabularies[0] - 1


@every_task
def test_the_joined_form_is_source_and_target_and_only_the_target_counts(name: str) -> None:
    apart = pairs(name, "encoder_decoder").train(2, 5, 40)
    joined = pairs(name, "decoder").train(2, 5, 40)
    assert joined.source_BS is None
    assert joined.inputs_BT.shape == joined.targets_BT.shape == joined.previous_BT.shape
    for (source, inputs, targets), said, wanted in zip(
        rows(apart), joined.inputs_BT, joined.targets_BT, strict=True
    ):
        rest = len(said) - len(source) - len(inputs)
        assert said.tolist() == [*source, *inputs, *[PAD] * rest]
        assert wanted.tolist() == [*[IGNORE] * len(source), *targets, *[IGNORE] * rest]


@every_served
def test_what_fills_a_batch_up_is_padding_in_inputs_and_no_target(name: str, family: str) -> None:
    batch = pairs(name, family).train(0, 0, 40)
    padded_BT = batch.inputs_BT == PAD
    assert bool(padded_BT.any())
    assert bool((np.diff(padded_BT.astype(int), axis=1) >= 0).all())  # at the end of a row
    assert not bool(padded_BT.all(axis=0).any())  # no wider than the longest row
    assert bool((batch.targets_BT[padded_BT] == IGNORE).all())
    if family == "encoder_decoder":
        assert np.array_equal(batch.targets_BT == IGNORE, padded_BT)
        assert batch.source_BS is not None
        assert not bool((batch.source_BS == PAD).all(axis=0).any())


@every_served
def test_a_bigram_reads_the_token_before_each_target(name: str, family: str) -> None:
    batch = pairs(name, family).train(0, 0, 20)
    for previous, targets in zip(batch.previous_BT, batch.targets_BT, strict=True):
        counted = np.flatnonzero(targets != IGNORE)
        assert previous[counted].tolist() == [BOS, *targets[counted][:-1].tolist()]


@every_served
def test_batches_depend_on_seed_and_index_alone_in_any_order(name: str, family: str) -> None:
    forwards = [pairs(name, family).train(3, index, 4) for index in range(5)]
    task = pairs(name, family)
    backwards = [task.train(3, index, 4) for index in reversed(range(5))]
    assert all(equal(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))
    assert not any(equal(forwards[0], other) for other in forwards[1:])
    assert not equal(task.train(4, 0, 4), forwards[0])


@every_served
def test_validation_is_one_fixed_set_apart_from_training(name: str, family: str) -> None:
    task = pairs(name, family)
    before = task.valid(100)
    task.train(0, 0, 10)
    after = task.valid(100)
    assert [len(batch.inputs_BT) for batch in before] == [100, 100, 56]
    assert all(equal(a, b) for a, b in zip(before, after, strict=True))
    assert not equal(before[0], before[1])
    assert not equal(before[0], task.train(0, 0, 100))
    sampled = task.sample()
    assert len(sampled.inputs_BT) == 4096
    assert equal(sampled, task.sample())
    assert {tuple(r[r != PAD]) for r in sampled.inputs_BT[:100]}.isdisjoint(
        tuple(r[r != PAD]) for r in before[0].inputs_BT
    )


@every_task
def test_the_validation_set_is_the_same_however_it_is_cut(name: str) -> None:
    task = pairs(name, "encoder_decoder")
    small, large = ([row for b in task.valid(size) for row in rows(b)] for size in (50, 256))
    assert len(small) == len(large) == 256
    assert small == large


def test_the_sha_names_the_generator() -> None:
    shas = {synthetic_sha(task) for task in (*TASKS.values(), Reverse(name="reverse", symbols=8))}
    assert len(shas) == 3
    assert synthetic_sha(Reverse(name="reverse")) == pairs("reverse", "decoder").sha
    assert all(len(sha) == 12 for sha in shas)
