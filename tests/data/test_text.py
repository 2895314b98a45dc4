"""Characters: windows, masks, files that can be read and the text of every refusal."""

import gzip
import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from harness.data.arrays import IGNORE, MASK, SPECIALS, UNKNOWN, Arrays, Validation
from harness.data.tasks import data_sha, load
from harness.data.text import Characters, CodeText, Text
from harness.errors import ConfigError

LENGTH = 12


def story(letters: str, size: int, seed: int = 0) -> str:
    return "".join(np.random.default_rng(seed).choice(list(letters), size))


def text(
    folder: Path,
    family: str,
    path: str = "a.txt",
    length: int = LENGTH,
    held_out: Validation = "valid",
) -> Characters:
    task = load(Text(name="text", path=path), folder, family, length, held_out)
    assert isinstance(task, Characters)
    return task


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text(story("abcdefgh", 5000))
    return tmp_path


def equal(one: Arrays, other: Arrays) -> bool:
    return all(
        (a is None and b is None) or np.array_equal(a, b)  # type: ignore[arg-type]
        for a, b in zip(one, other, strict=True)
    )


def said(task: Characters, tokens: np.ndarray) -> str:
    """Tokens as letters; the corpora here hold the letters a to h, in order."""
    assert task.vocabularies == (SPECIALS + 8, SPECIALS + 8)
    return "".join(chr(ord("a") + token - SPECIALS) for token in tokens)


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_batches_depend_on_seed_and_index_alone_in_any_order(corpus: Path, family: str) -> None:
    forwards = [text(corpus, family).train(3, index, 4) for index in range(5)]
    task = text(corpus, family)
    task.train(9, 9, 9)
    backwards = [task.train(3, index, 4) for index in reversed(range(5))]
    assert all(equal(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))
    assert not any(equal(forwards[0], other) for other in forwards[1:])
    assert not equal(task.train(4, 0, 4), forwards[0])


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_validation_is_the_same_whatever_was_trained(corpus: Path, family: str) -> None:
    one, other = text(corpus, family), text(corpus, family)
    other.train(7, 0, 4)
    first, second, again = one.valid(4), other.valid(4), one.valid(4)
    assert len(first) == len(second) == len(again) > 1
    for a, b, c in zip(first, second, again, strict=True):
        assert equal(a, b)
        assert equal(a, c)


def test_a_decoders_targets_are_its_inputs_shifted_by_one(corpus: Path) -> None:
    task, whole = text(corpus, "decoder"), (corpus / "a.txt").read_text()
    for batch in (task.train(0, 0, 8), *task.valid(8), task.sample()):
        assert batch.source_BS is None
        assert batch.inputs_BT.shape[1] == LENGTH
        assert np.array_equal(batch.inputs_BT[:, 1:], batch.targets_BT[:, :-1])
        assert np.array_equal(batch.previous_BT, batch.inputs_BT)
        for inputs, targets in zip(batch.inputs_BT, batch.targets_BT, strict=True):
            assert said(task, np.append(inputs, targets[-1])) in whole


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_training_and_validation_windows_come_from_disjoint_text(
    tmp_path: Path, family: str
) -> None:
    # The last tenth is written in letters of its own, so that a shared character would show;
    # unseen in training, they are the unknown token.
    (tmp_path / "a.txt").write_text(story("abcdefgh", 900) + story("XY", 100))
    task = text(tmp_path, family)
    assert task.vocabularies == (SPECIALS + 8, SPECIALS + 8)
    trained = [task.train(seed, index, 32) for seed in range(3) for index in range(10)]
    for batch in (*trained, task.sample()):
        assert UNKNOWN not in batch.previous_BT
        assert UNKNOWN not in batch.targets_BT
    for batch in task.valid(16):
        assert bool((batch.previous_BT == UNKNOWN).all())
        assert bool(np.isin(batch.targets_BT, [UNKNOWN, IGNORE]).all())


def test_every_file_gives_its_last_tenth_to_validation(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a" * 900 + "X" * 100)
    (tmp_path / "two.txt").write_text("b" * 450 + "Y" * 50)
    task = text(tmp_path, "decoder", "*.txt")
    assert task.vocabularies[1] == SPECIALS + 2
    assert UNKNOWN not in task.sample().inputs_BT
    (valid,) = task.valid(1000)
    assert bool((valid.inputs_BT == UNKNOWN).all())


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_a_tuning_validates_on_the_end_of_each_files_training_part(
    tmp_path: Path, family: str
) -> None:
    # Letters of their own for what is trained on, held out for the tuning, and reported.
    (tmp_path / "one.txt").write_text(story("abcdef", 810) + story("XY", 90) + story("ZW", 100))
    (tmp_path / "two.txt").write_text(story("abcdef", 405) + story("UV", 45) + story("ZW", 50))
    reported, tuned = (text(tmp_path, family, "*.txt", held_out=h) for h in get_args(Validation))
    assert tuned.vocabularies == reported.vocabularies == (SPECIALS + 10,) * 2
    assert tuned.sha == reported.sha
    letters = "UVXYabcdef"  # of the whole training part, in order

    def letters_of(batches: list[Arrays]) -> set[str]:
        tokens = np.unique(np.concatenate([batch.previous_BT.ravel() for batch in batches]))
        return {"?" if token == UNKNOWN else letters[token - SPECIALS] for token in tokens}

    trained = [tuned.train(0, index, 32) for index in range(20)]
    assert letters_of(trained) == letters_of([tuned.sample()]) == set("abcdef")
    assert letters_of(tuned.valid(16)) == set("UVXY")
    assert letters_of(reported.valid(16)) == {"?"}
    assert len(tuned.valid(1000)[0].inputs_BT) == (90 + 45 - LENGTH - 1) // LENGTH


def test_training_windows_reach_all_of_the_training_text(tmp_path: Path) -> None:
    letters = [chr(0x4E00 + i) for i in range(100)]
    (tmp_path / "a.txt").write_text("".join(letters))
    task = text(tmp_path, "decoder", length=8)  # 90 characters to train on, 10 to validate
    seen: set[int] = set()
    for index in range(50):
        batch = task.train(0, index, 32)
        seen |= set(batch.inputs_BT.ravel()) | set(batch.targets_BT.ravel())
    assert seen == set(range(SPECIALS, SPECIALS + 90))


def test_validation_windows_are_spread_over_the_validation_text(corpus: Path) -> None:
    task = load(Text(name="text", path="a.txt", valid_windows=7), corpus, "decoder", LENGTH)
    sizes = [len(batch.inputs_BT) for batch in task.valid(3)]
    assert sizes == [3, 3, 1]
    held_out = (corpus / "a.txt").read_text()[4500:]
    rows = np.concatenate([batch.inputs_BT for batch in task.valid(3)])
    starts = [held_out.index(said(task, row)) for row in rows]  # type: ignore[arg-type]
    assert starts[0] == 0
    assert starts[-1] == 500 - LENGTH - 1
    assert min(np.diff(starts)) >= LENGTH


def test_a_masked_encoder_hides_fifteen_percent_of_what_a_decoder_would_say(corpus: Path) -> None:
    masked, causal = text(corpus, "encoder", length=60), text(corpus, "decoder", length=60)
    batches = [(masked.train(0, i, 64), causal.train(0, i, 64)) for i in range(10)]
    inputs = np.concatenate([m.inputs_BT for m, _ in batches])
    targets = np.concatenate([m.targets_BT for m, _ in batches])
    truth = np.concatenate([c.targets_BT for _, c in batches])  # the same windows, unmasked
    chosen = targets != IGNORE
    assert np.array_equal(targets[chosen], truth[chosen])
    assert np.array_equal(inputs[~chosen], truth[~chosen])
    total, count = chosen.size, int(chosen.sum())  # 38,400 and about 5,760
    assert abs(count / total - 0.15) < 4 * math.sqrt(0.15 * 0.85 / total)

    def close(share: float, expected: float) -> bool:
        return abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / count)

    now, before = inputs[chosen], truth[chosen]
    assert close((now == MASK).mean(), 0.8)
    # A random letter is the true one in one of eight cases.
    assert close((now == before).mean(), 0.1 + 0.1 / 8)
    others = now[(now != MASK) & (now != before)]
    assert close(len(others) / count, 0.1 * 7 / 8)
    assert set(others) == set(range(SPECIALS, SPECIALS + 8))
    assert MASK not in inputs[~chosen]


def test_every_masked_window_has_a_target_however_short(corpus: Path) -> None:
    task = text(corpus, "encoder", length=3)  # 61 % of windows this short would have none
    for batch in (task.train(0, 0, 500), *task.valid(50)):
        assert bool((batch.targets_BT != IGNORE).any(axis=1).all())


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_the_validation_set_is_the_same_however_it_is_cut(corpus: Path, family: str) -> None:
    task = text(corpus, family)
    small, large = task.valid(3), task.valid(1000)
    assert (len(small) > 1, len(large)) == (True, 1)
    for part in ("inputs_BT", "targets_BT", "previous_BT"):
        cut = np.concatenate([getattr(batch, part) for batch in small])
        assert np.array_equal(cut, getattr(large[0], part))


def test_a_masked_encoders_bigram_reads_the_true_character_before_each_target(
    corpus: Path,
) -> None:
    masked, causal = text(corpus, "encoder"), text(corpus, "decoder")
    assert np.array_equal(masked.train(1, 2, 8).previous_BT, causal.train(1, 2, 8).inputs_BT)


def test_code_text_is_the_installed_sources_of_torch_nn_modules() -> None:
    from importlib.util import find_spec

    folder = Path(find_spec("torch").origin).parent / "nn" / "modules"  # type: ignore[union-attr, arg-type]
    sources = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))]
    assert len(sources) > 20
    task = load(CodeText(name="code_text"), Path("nowhere"), "decoder", 48)
    train = "".join(source[: round(0.9 * len(source))] for source in sources)
    assert task.vocabularies == (SPECIALS + len(set(train)),) * 2
    assert task.sample().inputs_BT.shape == (math.ceil((len(train) - 48) / 48), 48)
    assert sum(len(batch.inputs_BT) for batch in task.valid(16)) == 128
    assert len(train) > 700_000


def test_gz_folder_pattern_and_absolute_path_name_the_same_text(tmp_path: Path) -> None:
    data, letters = tmp_path / "data", story("abcdefgh", 2000)
    (data / "deep" / "er").mkdir(parents=True)
    (data / "deep" / "er" / "a.txt").write_text(letters)
    with gzip.open(data / "b.txt.gz", "wb") as file:
        file.write(letters.encode())
    paths = (
        "deep/er/a.txt",  # a file
        "deep",  # a folder, searched to its bottom
        "deep/*/*.txt",  # a pattern
        "**/a.txt",
        "b.txt.gz",
        "*.gz",
        str(data / "deep" / "er" / "a.txt"),
        str(data / "deep"),
    )
    tasks = [text(data, "decoder", path) for path in paths]
    for task in tasks:
        assert equal(task.train(0, 0, 4), tasks[0].train(0, 0, 4))
        assert task.sha == tasks[0].sha


def test_an_absolute_pattern_is_searched(corpus: Path, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert text(elsewhere, "decoder", str(corpus / "*.txt")).sha == text(corpus, "decoder").sha


def test_hidden_files_of_a_folder_or_pattern_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a" / ".git").mkdir(parents=True)
    (tmp_path / "a" / "x.txt").write_text(story("abcdefgh", 2000))
    sha = text(tmp_path, "decoder", "a").sha
    (tmp_path / "a" / ".DS_Store").write_bytes(b"\0\0\0\1Bud1\xff")
    (tmp_path / "a" / ".git" / "index.txt").write_text("DIRC" * 100)
    (tmp_path / "a" / "._x.txt").write_bytes(b"\0\5\x16\7")
    for path in ("a", "a/*", "a/**/*", str(tmp_path / "a"), str(tmp_path / "a" / "*.txt")):
        assert text(tmp_path, "decoder", path).sha == sha
    assert text(tmp_path, "decoder", "a/.git").sha != sha  # named, it is read


def test_utf16_with_a_byte_order_mark_is_the_same_text(tmp_path: Path) -> None:
    letters = story("abcdefgh", 2000)
    for name, encoding in (("a", "utf-8"), ("b", "utf-16"), ("c", "utf-8-sig")):
        (tmp_path / f"{name}.txt").write_text(letters, encoding=encoding)
    first, *others = (text(tmp_path, "decoder", f"{name}.txt") for name in "abc")
    for other in others:
        assert other.sha == first.sha
        assert equal(other.train(0, 0, 4), first.train(0, 0, 4))


def test_a_path_from_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text(story("abcdefgh", 2000))
    there = text(Path("nowhere"), "decoder", "~/a.txt")
    assert there.sha == text(tmp_path, "decoder", "a.txt").sha
    said = refusal(tmp_path, "~nobody-here/a.txt")
    assert said.startswith("data.path: ~nobody-here/a.txt: ")
    assert said.endswith("; write the path out")


def test_the_sha_is_of_the_characters_and_not_of_their_place(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one.txt", "same.md", "other.txt"))
    one.write_text(story("abcdefgh", 2000))
    same.write_text(one.read_text())
    other.write_text(one.read_text()[:-1] + "!")
    shas = {p.name: data_sha(Text(name="text", path=p.name), tmp_path) for p in (one, same, other)}
    assert shas["one.txt"] == shas["same.md"]
    assert shas["one.txt"] != shas["other.txt"]
    assert all(len(sha) == 12 for sha in shas.values())
    assert shas["one.txt"] == text(tmp_path, "encoder", "one.txt").sha


def test_the_sha_sees_where_a_file_ends(tmp_path: Path) -> None:
    for folder, parts in (("x", ("ab", "c")), ("y", ("a", "bc"))):
        (tmp_path / folder).mkdir()
        for number, part in enumerate(parts):
            (tmp_path / folder / f"{number}.txt").write_text(part)
    x, y = (data_sha(Text(name="text", path=folder), tmp_path) for folder in ("x", "y"))
    assert x != y  # another cut into training and validation text


def test_a_file_that_changes_has_another_sha(corpus: Path) -> None:
    before = data_sha(Text(name="text", path="a.txt"), corpus)
    (corpus / "a.txt").write_text("another text " * 100)
    assert data_sha(Text(name="text", path="a.txt"), corpus) != before


def refusal(folder: Path, path: str, length: int = LENGTH) -> str:
    with pytest.raises(ConfigError) as caught:
        text(folder, "decoder", path, length)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("path", ["b.txt", "*.rst", "none/*"])
def test_a_missing_file_is_refused_by_name_folder_and_remedy(corpus: Path, path: str) -> None:
    assert refusal(corpus, path) == (
        f"data.path: no file at '{path}' in '{corpus}'; name a file, folder or pattern"
    )


def test_a_missing_absolute_path_is_refused_as_well(corpus: Path) -> None:
    message = refusal(corpus, "/no/such/file.txt")
    assert message.startswith("data.path: no file at '/no/such/file.txt'")
    assert message.endswith("; name a file, folder or pattern")


def test_an_empty_folder_holds_no_file(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path, "empty").startswith("data.path: no file at 'empty'")


def test_a_file_that_is_not_utf8_is_refused_by_its_first_such_byte(tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9 " * 500)
    said = "line 1: byte 4 (0xe9) is not UTF-8; convert the file"
    assert refusal(tmp_path, "latin.txt") == f"{latin}: {said}"
    with gzip.open(tmp_path / "latin.gz", "wb") as file:
        file.write(latin.read_bytes())
    assert refusal(tmp_path, "latin.gz") == f"{tmp_path / 'latin.gz'}: {said}"


@pytest.mark.parametrize("damage", ["truncated", "not gzip", "garbled"])
def test_a_damaged_gz_is_refused_by_name_and_remedy(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(story("abcdefgh", 2000).encode())
    path = tmp_path / "a.txt.gz"
    path.write_bytes(
        {
            "truncated": whole[: len(whole) // 2],
            "not gzip": b"plain text " * 100,
            "garbled": whole[:10] + bytes(255 - byte for byte in whole[10:]),
        }[damage]
    )
    message = refusal(tmp_path, "a.txt.gz")
    assert message.startswith(f"{path}: cannot be read (")
    assert "; " in message  # what to do follows the semicolon, as in every other message


@pytest.mark.parametrize("size", [0, 1, 100, 130])
def test_a_text_shorter_than_a_validation_window_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.txt").write_text("x" * size)
    assert refusal(tmp_path, "a.txt", length=12) == (
        f"data: {size} characters are too few for train.length 12; name more text"
    )


def test_a_text_too_short_for_a_tuning_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(story("abcdefgh", 150))
    text(tmp_path, "decoder")  # 15 characters to validate on, of the tuning 13 or 14
    with pytest.raises(ConfigError) as caught:
        text(tmp_path, "decoder", held_out="tuning")
    assert str(caught.value) == (
        "data: 150 characters are too few for train.length 12 and a tuning, which validates on a "
        "tenth of the training part; name more text"
    )
    (tmp_path / "a.txt").write_text(story("abcdefgh", 160))
    (batch,) = text(tmp_path, "decoder", held_out="tuning").valid(8)
    assert batch.inputs_BT.shape == (1, 12)


def test_the_shortest_text_that_fits_gives_one_validation_window(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(story("abcdefgh", 140))  # 14 characters to validate on
    (batch,) = text(tmp_path, "decoder", length=12).valid(8)
    assert batch.inputs_BT.shape == (1, 12)
