"""Baseline and reference losses against a count with dictionaries, written out longhand."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from harness.data.arrays import EOS, IGNORE, SPECIALS, Arrays, Task
from harness.data.baselines import Frequencies, baselines
from harness.data.synthetic import Recall, Reverse
from harness.data.tasks import TaskOptions, load
from harness.data.text import CodeText, Text

Triple = tuple[int, int, int]  # position, token before, target


def triples(batches: list[Arrays]) -> list[Triple]:
    found = []
    for batch in batches:
        for previous, targets in zip(batch.previous_BT, batch.targets_BT, strict=True):
            for position, (before, target) in enumerate(zip(previous, targets, strict=True)):
                if target != IGNORE:
                    found.append((position, int(before), int(target)))
    return found


def cross_entropy(
    seen: list[tuple[int, int]], asked: list[tuple[int, int]], size: int, added: float
) -> float:
    """-mean log p(target | given), p from counts in `seen` with `added` for every target."""
    together, alone = Counter(seen), Counter(given for given, _ in seen)
    return -sum(
        math.log((together[given, target] + added) / (alone[given] + added * size))
        for given, target in asked
    ) / len(asked)


def longhand(task: Task, sequences: int) -> tuple[float, float, float]:
    """(unigram, position-unigram, bigram)"""
    seen, asked = triples([task.sample()]), triples(task.valid(sequences))
    size = task.vocabularies[1]
    return (
        cross_entropy([(0, t) for _, _, t in seen], [(0, t) for _, _, t in asked], size, 1),
        cross_entropy([(p, t) for p, _, t in seen], [(p, t) for p, _, t in asked], size, 1),
        cross_entropy([(b, t) for _, b, t in seen], [(b, t) for _, b, t in asked], size, 0.1),
    )


class Spelled:
    """A task whose arrays are given."""

    sha = "0" * 12

    def __init__(self, size: int, sample: Arrays, valid: list[Arrays]) -> None:
        self.vocabularies, self._sample, self._valid = (size, size), sample, valid

    def train(self, seed: int, index: int, sequences: int) -> Arrays:
        return self._sample

    def valid(self, sequences: int) -> list[Arrays]:
        return self._valid

    def sample(self) -> Arrays:
        return self._sample


def arrays(previous: list[list[int]], targets: list[list[int]]) -> Arrays:
    return Arrays(np.array(previous), np.array(targets), np.array(previous))


def test_a_table_of_eight_tokens_counted_by_hand() -> None:
    # training targets 1 1 2 1 | 1 1 2 2, vocabulary 3: counts 0, 5, 3
    sample = arrays([[0, 1, 1, 2], [0, 1, 1, 2]], [[1, 1, 2, 1], [1, 1, 2, 2]])
    valid = arrays([[0, 1], [0, 2]], [[1, 2], [IGNORE, 0]])  # 1 at 0, 2 at 1, 0 at 1
    baseline, reference, _ = baselines(Spelled(3, sample, [valid]), 2)
    unigram = -(math.log(6 / 11) + math.log(4 / 11) + math.log(1 / 11)) / 3
    # position 0: counts 0 2 0; position 1: counts 0 2 0
    position = -(math.log(3 / 5) + math.log(1 / 5) + math.log(1 / 5)) / 3
    assert position < unigram
    assert baseline == pytest.approx(position, rel=1e-12)
    # after 0: 1 twice; after 1: 1 twice, 2 twice; after 2: 1 once, 2 once
    bigram = -(math.log(2.1 / 2.3) + math.log(2.1 / 4.3) + math.log(0.1 / 2.3)) / 3
    assert reference == pytest.approx(bigram, rel=1e-12)


def test_what_training_never_saw_costs_what_the_added_count_says() -> None:
    sample = arrays([[0, 1]], [[1, 1]])
    valid = arrays([[0, 1, 3]], [[1, 1, 2]])  # position 2 and token 3 are new
    baseline, reference, _ = baselines(Spelled(4, sample, [valid]), 1)
    unigram = -(2 * math.log(3 / 6) + math.log(1 / 6)) / 3
    position = -(2 * math.log(2 / 5) + math.log(1 / 4)) / 3
    assert baseline == pytest.approx(min(unigram, position), rel=1e-12)
    assert reference == pytest.approx(
        -(2 * math.log(1.1 / 1.4) + math.log(0.1 / 0.4)) / 3, rel=1e-12
    )


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_losses_of_a_text_are_those_of_the_longhand_count(tmp_path: Path, family: str) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat, and that was that. " * 40)
    task = load(Text(name="text", path="a.txt"), tmp_path, family, 11)
    unigram, position, bigram = longhand(task, 4)
    baseline, reference, _ = baselines(task, 4)
    assert baseline == pytest.approx(min(unigram, position), rel=1e-10)
    found = [
        np.concatenate([table.losses(a) for a in task.valid(4)]).mean()
        for table in baselines(task, 4).blind
    ]
    assert found == pytest.approx([unigram, position], rel=1e-10)
    assert reference == pytest.approx(bigram, rel=1e-10)
    assert bigram < unigram


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
@pytest.mark.parametrize(
    "options", [Reverse(name="reverse", symbols=6), Recall(name="recall", symbols=6)]
)
def test_losses_of_a_synthetic_task_are_those_of_the_longhand_count(
    options: TaskOptions, family: str
) -> None:
    task = load(options, Path("nowhere"), family, 9)
    baseline, reference, _ = baselines(task, 64)
    unigram, position, bigram = longhand(task, 64)
    assert baseline == pytest.approx(min(unigram, position), rel=1e-10)
    assert reference == pytest.approx(bigram, rel=1e-10)


def test_reverses_baseline_knows_where_a_sequence_may_end() -> None:
    # No source is shorter than 10, so EOS stands at positions 10 to 20 and nowhere before.
    task = load(Reverse(name="reverse"), Path("nowhere"), "encoder_decoder", 20)
    ends = {position for position, _, target in triples(task.valid(256)) if target == EOS}
    assert min(ends) == 10
    unigram, position, _ = longhand(task, 256)
    assert position < unigram - 0.05
    assert baselines(task, 256).loss == pytest.approx(position, rel=1e-10)


def test_losses_of_reversal_by_an_encoder_are_those_of_uniform_symbols() -> None:
    # Symbols are independent: neither a place nor the token before one tells anything.
    task = load(Reverse(name="reverse", symbols=6), Path("nowhere"), "encoder", 9)
    baseline, reference, _ = baselines(task, 64)
    unigram, position, bigram = longhand(task, 64)
    assert baseline == pytest.approx(min(unigram, position), rel=1e-10)
    assert reference == pytest.approx(bigram, rel=1e-10)
    assert baseline == pytest.approx(math.log(6), abs=0.01)
    assert reference == pytest.approx(math.log(6), abs=0.02)


def test_the_unigram_is_the_baseline_where_positions_tell_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(np.random.default_rng(0).choice(list("abcd"), 3000)))
    task = load(Text(name="text", path="a.txt"), tmp_path, "decoder", 30)
    unigram, position, _ = longhand(task, 8)
    assert unigram < position  # its one table is counted in more tokens
    assert baselines(task, 8).loss == pytest.approx(unigram, rel=1e-10)


def test_losses_do_not_depend_on_how_the_validation_set_is_cut(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat, and that was that. " * 40)
    task = load(Text(name="text", path="a.txt"), tmp_path, "decoder", 11)
    assert baselines(task, 3)[:2] == pytest.approx(baselines(task, 8)[:2], rel=1e-12)


def test_code_text_has_the_losses_of_real_text() -> None:
    # About 3.20 and 2.40 nats; the text is that of the installed torch, so only its kind is known.
    task = load(CodeText(name="code_text"), Path("nowhere"), "decoder", 48)
    baseline, reference, _ = baselines(task, 16)
    assert 2 < reference < baseline - 0.5
    assert baseline < 4
    assert baseline < math.log(task.vocabularies[1] - SPECIALS)


def test_under_label_smoothing_the_table_is_the_best_of_that_objective() -> None:
    # targets 1 1 2 1 | 1 1 2 2 of vocabulary 3, add-one: p = 1/11, 6/11, 4/11
    sample = arrays([[0, 1, 1, 2], [0, 1, 1, 2]], [[1, 1, 2, 1], [1, 1, 2, 2]])
    table = Frequencies(sample, 3, 1.0, lambda a: np.zeros_like(a.targets_BT))
    asked = arrays([[0, 1, 1, 1]], [[0, 1, IGNORE, 2]])
    p = np.array([1, 6, 4]) / 11
    assert table.losses(asked).tolist() == pytest.approx((-np.log(p)).tolist(), rel=1e-12)
    # Minimising (1 - e) CE(p, q) + e CE(uniform, q) over q gives their mixture.
    best = 0.9 * p + 0.1 / 3
    assert table.losses(asked, 0.1).tolist() == pytest.approx((-np.log(best)).tolist(), rel=1e-12)
