"""Arrays as torch batches: masks, counts of targets, and an order that the seed alone decides."""

import numpy as np
import pytest
import torch

from harness.data.arrays import IGNORE, PAD, Arrays
from harness.data.baselines import baselines
from harness.data.batches import TrainingBatches, as_batch
from harness.data.ranks import ALONE, Ranks
from harness.data.synthetic import Pairs, Reverse

torch.set_num_threads(1)

INPUTS = np.array([[1, 7, 5, 6], [1, 8, PAD, PAD]])
TARGETS = np.array([[7, 5, 6, 2], [8, 2, IGNORE, IGNORE]])


def test_a_mask_is_true_at_tokens() -> None:
    batch = as_batch(Arrays(INPUTS, TARGETS, INPUTS, source_BS=np.array([[5, 6], [7, PAD]])))
    assert batch.mask_BT is not None
    assert batch.mask_BT.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.source_mask_BS is not None
    assert batch.source_mask_BS.tolist() == [[True, True], [True, False]]
    assert batch.inputs_BT.tolist() == INPUTS.tolist()
    assert batch.targets_BT.tolist() == TARGETS.tolist()


def test_a_batch_without_padding_has_no_mask() -> None:
    batch = as_batch(Arrays(INPUTS[:1], TARGETS[:1], INPUTS[:1], source_BS=np.array([[5, 6]])))
    assert batch.mask_BT is None
    assert batch.source_mask_BS is None
    alone = as_batch(Arrays(INPUTS[:1], TARGETS[:1], INPUTS[:1]))
    assert alone.source_BS is None
    assert alone.source_mask_BS is None


def test_only_targets_that_count_are_counted() -> None:
    assert as_batch(Arrays(INPUTS, TARGETS, INPUTS)).targets == 6


def test_a_model_is_given_inputs_and_masks_and_no_targets() -> None:
    batch = as_batch(Arrays(INPUTS, TARGETS, INPUTS, source_BS=np.array([[5, 6], [7, PAD]])))
    given = batch.model_inputs
    assert len(given) == 4
    assert given[0] is batch.inputs_BT
    assert given[1] is batch.mask_BT
    assert given[2] is batch.source_BS
    assert given[3] is batch.source_mask_BS


def test_a_batch_moves_whole_and_what_is_absent_stays_absent() -> None:
    moved = as_batch(Arrays(INPUTS, TARGETS, INPUTS)).to(torch.device("meta"))
    assert moved.inputs_BT.device.type == moved.targets_BT.device.type == "meta"
    assert moved.source_BS is None


def test_training_batches_are_the_tasks_in_the_order_of_their_index() -> None:
    task = Pairs(Reverse(name="reverse"), "encoder_decoder", 8)
    batches = TrainingBatches(task, seed=3, size=5, steps=4)
    assert len(batches) == 4
    for index in (2, 0, 3):
        expected = task.train(3, index, 5)
        assert batches[index].inputs_BT.tolist() == expected.inputs_BT.tolist()
        assert batches[index].targets_BT.tolist() == expected.targets_BT.tolist()
        assert expected.source_BS is not None
        assert batches[index].source_BS.tolist() == expected.source_BS.tolist()


def test_ranks_share_the_batches_of_each_step() -> None:
    task = Pairs(Reverse(name="reverse"), "encoder_decoder", 8)
    steps, accumulation = 3, 4

    def batches(ranks: Ranks, step: int) -> list[str]:
        """Those of a step, as they come."""
        own = TrainingBatches(task, 3, 5, steps, accumulation=accumulation, ranks=ranks)
        share = accumulation // ranks.count
        assert len(own) == steps * share
        return [str(own[step * share + i].targets_BT.tolist()) for i in range(share)]

    for count in (2, 4):
        for step in range(steps):
            shared = [batches(Ranks(rank, count), step) for rank in range(count)]
            in_turn = [batch for turn in zip(*shared, strict=True) for batch in turn]
            assert in_turn == batches(ALONE, step)
            assert len(set(in_turn)) == accumulation


@pytest.mark.parametrize("ranks", [ALONE, Ranks(1, 2)])
def test_a_batch_weighs_as_much_as_it_has_of_the_targets_of_its_step(ranks: Ranks) -> None:
    task = Pairs(Reverse(name="reverse"), "encoder_decoder", 8)
    batches = TrainingBatches(task, 3, 5, 3, accumulation=4, ranks=ranks)
    for index in range(len(batches)):
        turn = index * ranks.count + ranks.rank
        step = [as_batch(task.train(3, turn // 4 * 4 + i, 5)).targets for i in range(4)]
        assert len(set(step)) > 1
        assert batches[index].weight == pytest.approx(4 * step[turn % 4] / sum(step), rel=1e-15)


def test_a_batch_of_a_step_of_its_own_weighs_one() -> None:
    batches = TrainingBatches(Pairs(Reverse(name="reverse"), "encoder_decoder", 8), 3, 5, 3)
    assert [batches[i].weight for i in range(3)] == [1.0] * 3


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_batch_knows_what_blind_tables_have_on_its_targets(smoothing: float) -> None:
    task = Pairs(Reverse(name="reverse"), "encoder_decoder", 8)
    blind = baselines(task, 5).blind
    batches = TrainingBatches(task, 3, 5, 3, blind=blind, smoothing=smoothing)
    for i in range(3):
        sums = [float(table.losses(task.train(3, i, 5), smoothing).sum()) for table in blind]
        assert batches[i].plateau == (min(sums), max(sums))
        assert min(sums) < max(sums)


def test_one_process_speaks_to_itself() -> None:
    tensor = torch.ones(3)
    assert ALONE.told("x") == "x"
    assert ALONE.gathered(5) == [5]
    assert ALONE.summed(tensor) is tensor
    assert ALONE.met()
