"""Which training pairs a tuning validates on: a share of each direction, from rows of their own."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from harness.data.corpora.tables import Corpus
from harness.data.translation.options import Translation
from harness.data.translation.task import Parallel, load_parallel
from harness.data.translation.tuning import held_out
from harness.errors import ConfigError
from tests import parallel
from tests.data.translation.test_task import rows, text


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def task(folder: Path, corpus: str, **given: object) -> Parallel:
    options = Translation(name="translation", corpus=corpus, pieces=150, **given)  # type: ignore[arg-type]
    return load_parallel(options, folder, 80, "tuning")


def said(task: Parallel) -> set[tuple[str, str]]:
    """The pairs that it validates on, as text."""
    return {(text(task, s), text(task, t)) for a in task.valid(1000) for s, t in rows(a)}


def test_a_twentieth_of_the_training_pairs_is_held_out_and_left_out_of_training(
    tmp_path: Path,
) -> None:
    parallel.write(tmp_path)
    found = task(tmp_path, "toy")
    trained = {(text(found, s), text(found, t)) for s, t in rows(found.sample())}
    assert (len(said(found)), len(trained)) == (10, 190)  # of 200; 30 pairs validate
    assert said(found) | trained == set(parallel.pairs()[:200])
    assert found.sizes == {"train": 190, "valid": 10, "test": 24}


def test_no_more_are_held_out_than_the_validation_split_has(tmp_path: Path) -> None:
    parallel.write(tmp_path, valid=3)
    assert task(tmp_path, "toy").sizes == {"train": 197, "valid": 3, "test": 24}


def test_what_is_held_out_depends_on_what_rows_hold_and_not_on_their_order(tmp_path: Path) -> None:
    path = parallel.write(tmp_path)
    before = said(task(tmp_path, "toy"))
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *reversed(lines)]))
    assert said(task(tmp_path, "toy")) == before


def test_no_direction_trains_on_a_row_that_another_holds_out(tmp_path: Path) -> None:
    parallel.write_many(tmp_path)
    found = task(tmp_path, "many", directions=("en>de", "de>en", "zh-CN>en"))
    english = {
        pair[1] if pair[1].startswith("He ") else pair[0] for pair in said(found)
    }  # of every row held out
    pairs = [(text(found, s), text(found, t)) for s, t in rows(found.sample())]
    assert english.isdisjoint(side for pair in pairs for side in pair)
    assert [len(p.costs) for p in found._valid.values()] == [10, 10, 7]  # 200, 200, 150 pairs
    # The same rows first, whatever is the direction.
    there, back = ({tuple(sorted(p)) for p in said(task(tmp_path, "many", directions=(d,)))}
                   for d in ("en>de", "de>en"))  # fmt: skip
    assert there == back


def test_a_pair_that_rows_of_more_languages_repeat_is_held_out_once(tmp_path: Path) -> None:
    corpus = Corpus(
        ("a", "b", "c"),
        {"train": [*((f"a{i}", f"b{i}", "") for i in range(40)), ("a0", "b0", "c")]},
        {},
        "",
    )
    pairs = [(f"a{i}", f"b{i}") for i in range(40)]
    held, left = held_out(corpus, {("a", "b"): pairs}, {("a", "b"): 9})
    assert len(held["a", "b"]) == 2
    assert Counter([*held["a", "b"], *left["a", "b"]]) == Counter(range(40))
    assert held["a", "b"].dtype == left["a", "b"].dtype == np.int64


def test_a_corpus_too_small_to_hold_out_from_is_refused(tmp_path: Path) -> None:
    parallel.write(tmp_path, train=19)
    with pytest.raises(ConfigError) as refused:
        task(tmp_path, "toy")
    assert str(refused.value) == (
        "data.corpus: 19 training pairs of a direction are too few for a tuning, which validates "
        "on one in 20; name a larger corpus, or tune nothing"
    )
