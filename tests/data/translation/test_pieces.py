"""Byte-pair encoding: text comes back, only training texts count, and the cache only saves time."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.data.arrays import BOS, EOS, MASK, PAD, SPECIALS, UNKNOWN
from harness.data.translation import pieces as module
from harness.data.translation.pieces import pieces_of
from tests import parallel

TEXTS = [side for pair in parallel.pairs() for side in pair]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "residual-depth-harness"


def test_text_comes_back_from_its_pieces() -> None:
    pieces = pieces_of(TEXTS, 120, ())
    new = ["Er löscht drei alte Bilder.", "deletes files He", "sucht.zeigt", ""]
    assert pieces.decode(pieces.encode([*TEXTS, *new])) == [*TEXTS, *new]


def test_numbers_lie_between_the_special_tokens_and_the_size_of_the_vocabulary() -> None:
    pieces = pieces_of(TEXTS, 120, ("de", "en"))
    numbers = {i for row in pieces.encode(TEXTS) for i in row}
    assert pieces.tags == {"de": SPECIALS, "en": SPECIALS + 1}
    assert min(numbers) >= SPECIALS + 2
    assert max(numbers) < pieces.vocabulary == SPECIALS + 2 + 120


def test_an_unseen_character_is_unknown_and_says_nothing() -> None:
    pieces = pieces_of(TEXTS, 120, ())
    (row,) = pieces.encode(["Er Ж"])
    assert row[-1] == UNKNOWN
    assert pieces.decode([row]) == ["Er"]


@pytest.mark.parametrize("text", ["<unk>", "<pad>", "<s>", module.OWN])
def test_no_text_is_taken_for_a_special_token(text: str) -> None:
    pieces = pieces_of([*TEXTS, "<unk> <pad> <s> </s>"], 120, ())
    (row,) = pieces.encode([text])
    assert not {PAD, BOS, EOS, MASK} & set(row)
    assert len(row) >= 1


def test_special_tokens_and_tags_say_nothing() -> None:
    pieces = pieces_of(TEXTS, 120, ("de", "en"))
    (row,) = pieces.encode(["drei Bilder"])
    said = [BOS, *pieces.tags.values(), *row, EOS, PAD, PAD]
    assert pieces.decode([said]) == ["drei Bilder"]


def test_digits_and_punctuation_stand_alone() -> None:
    pieces = pieces_of(["Seite 1234, 1234. Seite 1234," for _ in range(50)], 60, ())
    first, second = pieces.encode(["Seite 1234,", "Seite 12"])
    assert len(first) - len(second) == 3  # 3, 4 and the comma


def test_the_same_texts_give_the_same_pieces_in_another_process(cache: Path) -> None:
    """Also where more characters are equally frequent than are kept."""
    code = (
        "from harness.data.translation.pieces import pieces_of\n"
        "from tests import parallel\n"
        "texts = [side for pair in parallel.pairs() for side in pair]\n"
        "texts += [chr(0x4E00 + i) for i in range(500)]\n"
        "print(pieces_of(texts, 120, ()).encode([*texts[:9], *texts[-500:]]))"
    )
    said = set()
    for _ in range(3):
        for file in cache.glob("*"):
            file.unlink()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        said.add(done.stdout)
    assert len(said) == 1


def test_what_was_trained_once_is_read_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pieces_of(TEXTS, 120, ()).encode(TEXTS)
    assert len([*cache.iterdir()]) == 1
    monkeypatch.setattr(module, "_train", lambda *_: pytest.fail("trained again"))
    assert pieces_of(TEXTS, 120, ()).encode(TEXTS) == first


@pytest.mark.parametrize("change", ["texts", "count"])
def test_other_texts_and_settings_have_a_cache_of_their_own(cache: Path, change: str) -> None:
    pieces_of(TEXTS, 120, ())
    pieces_of(TEXTS[1:] if change == "texts" else TEXTS, 121 if change == "count" else 120, ())
    assert len([*cache.iterdir()]) == 2


@pytest.mark.parametrize("broken", [b"", b"{", b"\xff\xfe", b'{"version": "1.0"}'])
def test_a_broken_cache_is_made_anew(cache: Path, broken: bytes) -> None:
    first = pieces_of(TEXTS, 120, ()).encode(TEXTS)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(broken)
    assert pieces_of(TEXTS, 120, ()).encode(TEXTS) == first
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    pieces = pieces_of(TEXTS, 120, ())
    assert pieces.decode(pieces.encode(TEXTS[:3])) == TEXTS[:3]
