"""Batches of a parallel corpus: each pair once an epoch, within the budget, the same for all."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.data.arrays import BOS, EOS, IGNORE, PAD, Array, Arrays
from harness.data.baselines import baselines
from harness.data.translation import task as module
from harness.data.translation.options import Translation
from harness.data.translation.task import TEST_TOKENS, Parallel, load_parallel
from harness.errors import ConfigError
from tests import parallel

BUDGET = 100


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def toy(folder: Path, length: int = 40, **given: Any) -> Parallel:
    if not (folder / "toy.tsv").exists():
        parallel.write(folder)
    return load_parallel(
        Translation(name="translation", corpus="toy", **{"pieces": 80, **given}), folder, length
    )


def many(folder: Path, **given: Any) -> Parallel:
    parallel.write_many(folder)
    return load_parallel(
        Translation(name="translation", corpus="many", **{"pieces": 150, **given}), folder, 80
    )


def rows(arrays: Arrays) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(source, target) of each row, without padding."""
    assert arrays.source_BS is not None
    return [
        (tuple(s[s != PAD].tolist()), tuple(t[t != IGNORE].tolist()))
        for s, t in zip(arrays.source_BS, arrays.targets_BT, strict=True)
    ]


def epoch(task: Parallel, seed: int, number: int, pairs: int) -> list[Arrays]:
    """The batches of an epoch, as many as hold `pairs` pairs."""
    found: list[Arrays] = []
    index = 0
    while sum(len(a.targets_BT) for a in found) < pairs * (number + 1):
        found.append(task.train(seed, index, BUDGET))
        index += 1
    per_epoch = len(found) // (number + 1)
    return found[per_epoch * number :]


def test_every_training_pair_comes_once_an_epoch(tmp_path: Path) -> None:
    task = toy(tmp_path)
    first, second = epoch(task, 0, 0, 200), epoch(task, 0, 1, 200)
    seen = [Counter(row for a in each for row in rows(a)) for each in (first, second)]
    assert seen[0] == seen[1]
    assert len(seen[0]) == 200
    assert set(seen[0].values()) == {1}
    # ... in another order and other company
    assert [rows(a) for a in first] != [rows(a) for a in second]


def test_a_batch_keeps_to_its_budget_and_wastes_less_than_a_pair(tmp_path: Path) -> None:
    batches = epoch(toy(tmp_path), 3, 0, 200)
    sizes = [(len(a.targets_BT), max(a.targets_BT.shape[1], a.source_BS.shape[1])) for a in batches]
    assert all(count * longest <= BUDGET for count, longest in sizes)
    # A pair more, of like length, would be too much for all but what is left over at the end.
    assert sum((count + 1) * (longest + 1) <= BUDGET for count, longest in sizes) <= 1


def test_a_batch_is_a_function_of_seed_and_index(tmp_path: Path) -> None:
    task, again = toy(tmp_path), toy(tmp_path)
    assert [rows(task.train(5, i, BUDGET)) for i in (7, 0, 90)] == [
        rows(again.train(5, i, BUDGET)) for i in (7, 0, 90)
    ]
    assert rows(task.train(5, 0, BUDGET)) != rows(task.train(6, 0, BUDGET))


def test_a_target_is_said_after_what_stands_before_it(tmp_path: Path) -> None:
    arrays = toy(tmp_path).train(0, 0, BUDGET)
    for inputs, targets in zip(arrays.inputs_BT, arrays.targets_BT, strict=True):
        said = targets[targets != IGNORE]
        assert said[-1] == EOS
        assert inputs[inputs != PAD].tolist() == [BOS, *said[:-1]]
        assert (inputs[len(said) :] == PAD).all()
    assert arrays.previous_BT is arrays.inputs_BT


def test_no_row_of_any_batch_is_padding_only(tmp_path: Path) -> None:
    task = toy(tmp_path)
    for arrays in [*epoch(task, 0, 0, 200), *task.valid(BUDGET), *task.valid(41), task.sample()]:
        for side in (arrays.inputs_BT, arrays.source_BS):
            assert side is not None
            assert (side != PAD).any(axis=1).all()
            assert (side[:, -1] != PAD).any()  # as wide as the longest, no wider
        assert (arrays.targets_BT != IGNORE).any(axis=1).all()


def text(task: Parallel, tokens: Array | tuple[int, ...]) -> str:
    return task._pieces.decode([list(tokens)])[0]


def test_tokens_are_the_corpus_pairs_and_the_direction_decides_which_side_is_which(
    tmp_path: Path,
) -> None:
    there, back = toy(tmp_path), toy(tmp_path, directions="tgt>src")
    found = {(text(there, s), text(there, t)) for a in epoch(there, 0, 0, 200) for s, t in rows(a)}
    assert found == set(parallel.pairs()[:200])
    turned = {(text(back, t), text(back, s)) for a in epoch(back, 0, 0, 200) for s, t in rows(a)}
    assert turned == found


def test_validation_is_the_same_for_all_and_leaves_no_pair_without_a_neighbour(
    tmp_path: Path,
) -> None:
    task = toy(tmp_path)
    (pairs,) = task._valid.values()
    for budget in (2 * int(pairs.costs.max()), 41, BUDGET, 10_000):
        batches = task.valid(budget)
        found = [(text(task, s), text(task, t)) for a in batches for s, t in rows(a)]
        assert sorted(found) == sorted(parallel.pairs()[200:230])
        assert min(len(a.targets_BT) for a in batches) >= 2
    assert rows(toy(tmp_path).valid(BUDGET)[0]) == rows(task.valid(BUDGET)[0])


def test_pieces_and_frequencies_know_the_training_split_only(tmp_path: Path) -> None:
    before = toy(tmp_path)
    path = tmp_path / "toy.tsv"
    lines = path.read_text().splitlines()
    other = [line if line.startswith("train") else line.replace("E", "É") for line in lines[1:]]
    path.write_text("\n".join([lines[0], *other]))
    after = toy(tmp_path)
    assert after.sha != before.sha
    assert after.vocabularies == before.vocabularies
    assert rows(after.train(0, 0, BUDGET)) == rows(before.train(0, 0, BUDGET))
    assert rows(after.sample()) == rows(before.sample())
    assert len(before.sample().targets_BT) == 200


def test_what_filters_leave_out_is_counted(tmp_path: Path) -> None:
    path = parallel.write(tmp_path)
    long = " ".join(["Felder"] * 90)
    with path.open("a") as file:
        file.write(f"train\t{long}\tfields\nvalid\tFelder\t{long}\n\ntrain\tnur\t\n")
        file.write(f"train\t{'Datei' * 2_000}\tfile\ntest\t{'!' * 100_000}\tfile\n")
    task = toy(tmp_path)
    assert +task.left_out == {
        "empty line": 1,
        "no text": 1,
        "train pairs of more than 40 tokens": 2,
        "valid pairs of more than 40 tokens": 1,
        f"test pairs of more than {TEST_TOKENS} tokens": 1,
    }
    assert len(task.sample().targets_BT) == 200
    assert len(task.tests[0].pairs) == 24  # and not the 100,000 exclamation marks
    words = toy(tmp_path, max_words=5)
    longer = sum(max(len(side.split()) for side in pair) > 5 for pair in parallel.pairs()[:200])
    assert words.tests and words.left_out["train pairs of more than 5 words"] == longer + 1
    for side in (words.sample().source_BS, words.sample().targets_BT):
        assert side is not None
        assert all(len(text(words, row[row >= 0]).split()) <= 5 for row in side)
    assert all(len(side.split()) <= 5 for pair in words.tests[0].pairs for side in pair)


def test_pairs_that_rows_of_more_languages_repeat_count_once_and_are_not_held_out(
    tmp_path: Path,
) -> None:
    """Rows differ in a third language: as rows none repeats another."""
    path = parallel.write_many(tmp_path)
    before = many(tmp_path, directions=("de>en", "bk>en"))
    lines = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    train = next(cells for cells in lines if cells[0] == "train")
    test = next(cells for cells in lines if cells[0] == "test")
    with path.open("a") as file:
        for split, cells in (("train", train), ("valid", train), ("test", train), ("test", test)):
            file.write(f"{split}\t{cells[1]}\t{cells[2]}\tKB {split}\tX\n")
    task = load_parallel(before.options, tmp_path, 80)
    assert task.sizes == {
        "train": before.sizes["train"] + 1,  # of bk>en, where all are new
        "valid": before.sizes["valid"] + 1,
        "test": before.sizes["test"] + 2,
    }
    assert +task.left_out == {
        "train pairs repeated": 1,
        "test pairs repeated": 1,
        "valid pairs in training": 1,
        "test pairs in training": 1,
    }


def test_pairs_that_look_the_same_are_one_pair_and_not_held_out(tmp_path: Path) -> None:
    rows = [
        *("split\tde\ten\tfr", "train\tLösche alles\tx y\ta", "valid\tv v\tw w\tb"),
        *("train\tLo\u0308sche alles\tx y\tc", "valid\tLo\u0308sche alles\tx y\td"),
    ]
    (tmp_path / "form.tsv").write_text("\n".join(rows), encoding="utf-8")
    options = Translation(name="translation", corpus="form", directions=("de>en",), pieces=80)
    task = load_parallel(options, tmp_path, 40)
    assert task.sizes == {"train": 1, "valid": 1, "test": 0}
    assert +task.left_out == {"train pairs repeated": 1, "valid pairs in training": 1}


@pytest.mark.parametrize(
    ("given", "length", "words"),
    [({}, 2, "train.length 2 and data.max_words 0"), ({"max_words": 2}, 40, "data.max_words 2")],
)
def test_a_task_without_a_pair_left_says_which_limits_did_it(
    tmp_path: Path, given: dict[str, Any], length: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=rf"no pair of split 'train' is left for .*{words}"):
        toy(tmp_path, length, **given)


def test_a_source_names_its_target_language_where_there_are_several(tmp_path: Path) -> None:
    task = many(tmp_path, directions=("en>*", "de>en"))
    tags = dict(zip(sorted({"de", "bk", "zh-CN", "en"}), task.tags, strict=True))
    english = {b: a for a, b in parallel.pairs()}
    seen = Counter()
    for arrays in epoch(task, 0, 0, 200 * 4 - 50):
        for source, target in rows(arrays):
            (language,) = [name for name, tag in tags.items() if tag == source[0]]
            said, heard = text(task, source), text(task, target)
            seen[language] += 1
            if language == "en":
                assert english[heard] == said
            elif language == "de":
                assert english[said] == heard
            elif language == "bk":
                assert heard == said[::-1].upper()
            assert not set(source[1:]) & set(task.tags)
            assert not set(target) & set(task.tags)
    assert seen == {"de": 200, "bk": 200, "en": 200, "zh-CN": 150}  # empty cells are no pairs


def test_one_target_language_needs_no_tag(tmp_path: Path) -> None:
    assert many(tmp_path, directions=("*>en",)).tags == []


def test_low_resource_directions_keep_their_first_pairs_and_have_a_group(tmp_path: Path) -> None:
    task = many(tmp_path, directions=("de>en", "bk>en"), low_resource=("bk>en",), low_pairs=30)
    assert len(task.sample().targets_BT) == 230
    groups = [arrays.group for arrays in task.valid(BUDGET)]
    assert groups == sorted(groups, key=["high", "low"].index)
    assert set(groups) == {"high", "low"}
    assert [test.group for test in task.tests] == ["high", "low"]
    assert {arrays.group for arrays in toy(tmp_path).valid(BUDGET)} == {""}


def test_options_beyond_what_a_direction_has_are_told_with_what_it_has(tmp_path: Path) -> None:
    given = {"directions": ("de>en", "en>*"), "low_resource": ("de>en",)}
    most = {"low_pairs": 200, "test_pairs": 18}
    assert many(tmp_path, **given, **most).beyond == []
    assert many(tmp_path, **given, low_pairs=200, test_pairs=0).beyond == []
    assert many(tmp_path, **given, low_pairs=201, test_pairs=19).beyond == [
        "data.low_pairs: 201 is more than de>en (200) can give",
        "data.test_pairs: 19 is more than en>zh-CN (18) can give",
    ]


def test_the_test_split_comes_whole_in_batches_of_like_length(tmp_path: Path) -> None:
    task = many(tmp_path, directions=("en>*",), test_pairs=20)
    assert [len(test.pairs) for test in task.tests] == [20, 20, 18]
    for test in task.tests:
        order: list[int] = []
        for at, source_BS, longest in task.sources(test):
            order += at.tolist()
            for row, tokens in zip(at, source_BS, strict=True):
                kept = tokens[tokens != PAD]
                assert text(task, kept) == test.pairs[row][0]
                assert kept[0] in task.tags
            lengths = (source_BS != PAD).sum(axis=1)
            assert longest == [2 * length + 10 for length in lengths]
        assert sorted(order) == list(range(len(test.pairs)))


def test_scores_are_of_the_test_pairs(tmp_path: Path) -> None:
    task = toy(tmp_path)
    (test,) = task.tests
    said = task._pieces.encode([target for _, target in test.pairs])
    assert test.score(task.texts(said)).bleu == pytest.approx(100)
    assert test.score(task.texts(said[::-1])).bleu < 60


def test_a_test_split_may_be_absent(tmp_path: Path) -> None:
    parallel.write(tmp_path, test=0)
    assert toy(tmp_path).tests == []
    assert toy(tmp_path).sizes == {"train": 200, "valid": 30, "test": 0}


def test_baselines_count_no_padding(tmp_path: Path) -> None:
    task = toy(tmp_path)
    counts = Counter(t for _, target in rows(task.sample()) for t in target)
    total, size = sum(counts.values()), task.vocabularies[1]
    said = [t for a in task.valid(BUDGET) for _, target in rows(a) for t in target]
    unigram = -np.mean([np.log((counts[t] + 1) / (total + size)) for t in said])
    baseline, reference, _ = baselines(task, BUDGET)
    assert reference < baseline <= unigram + 1e-9


def test_frequencies_of_a_large_corpus_are_of_all_its_directions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = many(tmp_path, directions=("en>de", "en>bk"))
    whole = rows(task.sample())
    monkeypatch.setattr(module, "FREQUENCY_PAIRS", 100)
    some = rows(task.sample())
    assert len(some) == 100
    assert set(some) <= set(whole)
    german = set(whole[:200])
    assert sum(row in german for row in some) == 50
