"""The files of parallel corpora: what is read, left out, refused, and written."""

import gzip
import hashlib
import re
import unicodedata
from pathlib import Path

import pytest

from harness.data import files
from harness.data.corpora import tables
from harness.errors import ConfigError

SOUND = "split\tsrc\ttgt\ntrain\tJa.\tYes.\nvalid\tNein.\tNo.\n"


def file(folder: Path, text: str | bytes, name: str = "x.tsv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        tables.read(path)
    return str(caught.value)


def test_a_corpus_has_columns_rows_by_split_in_their_order_and_the_hash_of_its_bytes(
    tmp_path: Path,
) -> None:
    text = (
        "split\tde\ten\nvalid\tDrei.\tThree.\ntrain\t Eins. \tOne.\ntrain\tA\tB\ntest\tVier\tFour\n"
    )
    corpus = tables.read(file(tmp_path, text))
    assert corpus.columns == ("de", "en")
    assert corpus.splits == {
        "train": [("Eins.", "One."), ("A", "B")],
        "valid": [("Drei.", "Three.")],
        "test": [("Vier", "Four")],
    }
    assert corpus.left_out == {}
    assert corpus.sha == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_a_packed_file_is_the_same_corpus_as_its_content(tmp_path: Path) -> None:
    packed = file(tmp_path, gzip.compress(SOUND.encode()), "y.tsv.gz")
    assert tables.read(packed) == tables.read(file(tmp_path, SOUND))


def test_a_file_without_test_rows_has_an_empty_test_split(tmp_path: Path) -> None:
    assert tables.read(file(tmp_path, SOUND)).splits["test"] == []


def test_windows_line_ends_and_a_byte_order_mark_change_no_cell(tmp_path: Path) -> None:
    windows = b"\xef\xbb\xbf" + SOUND.replace("\n", "\r\n").encode()
    found = tables.read(file(tmp_path, windows, "windows.tsv"))
    assert found.columns == ("src", "tgt")
    assert found.splits == tables.read(file(tmp_path, SOUND)).splits


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_utf16_with_a_byte_order_mark_is_read(tmp_path: Path, encoding: str) -> None:
    mark = "\ufeff" if encoding.endswith("-be") else ""
    found = tables.read(file(tmp_path, (mark + SOUND).encode(encoding)))
    assert found.splits == tables.read(file(tmp_path, SOUND, "y.tsv")).splits


SAME = {  # of "Grüße an Zoë" in normal form C
    "normal form D": "Gru\u0308ße an Zoe\u0308",
    "zero-width space": "Grüße\u200b an Zoë",
    "word joiner and mark": "\ufeffGrüße an\u2060 Zoë\u200e",
    "soft hyphen": "Grü\xadße an Zoë",
    "spaces": "Grüße  an\xa0Zoë",
    "variation selector": "Grüße an Zoë\ufe0f",
}


@pytest.mark.parametrize("spelling", SAME)
def test_rows_that_look_the_same_are_repeated_or_in_training(tmp_path: Path, spelling: str) -> None:
    plain, other = "Grüße an Zoë", SAME[spelling]
    rows = f"train\t{plain}\tx\nvalid\t{other}\tx\ntest\t{other}\ty\ntest\t{plain}\ty\n"
    corpus = tables.read(file(tmp_path, SOUND + rows))
    assert corpus.left_out == {"repeated": 1, "in training": 1}
    assert corpus.splits["valid"] == [("Nein.", "No.")]
    assert corpus.splits["test"] == [(other, "y")]  # the first, as it is written


def test_plain_characters_are_normal_whatever_stands_beside_them() -> None:
    letters = [c for c in map(chr, range(0x110000)) if tables.PLAIN.fullmatch(c)]
    assert len(letters) > 30_000
    pairs = [unicodedata.decomposition(chr(i)).split() for i in range(0x110000)]
    seconds = {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and pair[0][0] != "<"}
    ignored = re.compile(f"[{tables.IGNORED}]")
    for letter in letters:
        assert unicodedata.is_normalized("NFC", letter) and not unicodedata.combining(letter)
        assert letter not in seconds and not ignored.match(letter)
        assert letter in " \t" or not letter.isspace()


def test_rows_that_look_different_are_different(tmp_path: Path) -> None:
    texts = ["x2", "x\u00b2", "X2", "x 2", "x2.", "\uff582", "x2\u0301"]
    rows = "".join(f"train\t{text}\tx\n" for text in texts)
    assert tables.read(file(tmp_path, SOUND + rows)).left_out == {}


BLANK = ["\u200b", "\ufeff", "\u2060\u200d", "\xad", "\u3164", "\u2800", "\u034f", "\xa0", "\0\x1b"]


@pytest.mark.parametrize("blank", BLANK, ids=ascii)
def test_a_cell_without_a_visible_character_is_empty(tmp_path: Path, blank: str) -> None:
    rows = f"split\ta\tb\tc\ntrain\tx\ty\t{blank}\ntrain\t{blank}\tz\t\nvalid\tu\tv\tw\n"
    corpus = tables.read(file(tmp_path, rows))
    assert corpus.splits["train"] == [("x", "y", "")]
    assert corpus.left_out == {"no text": 1}
    assert tables.cell(f" {blank}\t") == ""


@pytest.mark.parametrize("odd", ["\0", "\f", "\u2028", "\x85", "\x1c", "\v", '"', "\r."])
def test_only_a_line_feed_ends_a_line_and_only_a_tab_ends_a_cell(tmp_path: Path, odd: str) -> None:
    corpus = tables.read(file(tmp_path, SOUND + f"test\ta{odd}b\tc\n"))
    assert corpus.splits["test"] == [(f"a{odd}b", "c")]


def test_texts_of_any_length_are_read(tmp_path: Path) -> None:
    text = "wort " * 40_000 + "."
    corpus = tables.read(file(tmp_path, SOUND + f"train\t{text}\tword\n"))
    assert corpus.splits["train"][1] == (text, "word")


def test_what_teaches_nothing_is_left_out_and_counted_by_reason(tmp_path: Path) -> None:
    more = (
        "\n"  # an empty line
        "train\t\tNobody.\ntrain\tNiemand.\t \n"  # no text, twice
        "train\tJa.\tYes.\nvalid\tNein.\tNo.\n"  # repeated within their splits
        "valid\tJa.\tYes.\ntest\tJa.\tYes.\n"  # in training
        "test\tJa.\tYeah.\ntest\tNein.\tNo.\n"  # neither is a training row
    )
    corpus = tables.read(file(tmp_path, SOUND + more))
    assert corpus.left_out == {"empty line": 1, "no text": 2, "repeated": 2, "in training": 2}
    assert corpus.splits == {
        "train": [("Ja.", "Yes.")],
        "valid": [("Nein.", "No.")],
        "test": [("Ja.", "Yeah."), ("Nein.", "No.")],
    }


def test_a_held_out_row_is_left_out_although_the_training_row_comes_later(tmp_path: Path) -> None:
    text = "split\ta\tb\nvalid\tx\ty\nvalid\tu\tv\ntrain\tx\ty\n"
    corpus = tables.read(file(tmp_path, text))
    assert corpus.splits["valid"] == [("u", "v")]
    assert corpus.left_out == {"in training": 1}


def test_a_row_of_many_languages_needs_two_texts(tmp_path: Path) -> None:
    text = "split\tde\ten\tfr\ntrain\ta\t\tc\ntrain\t\tb\t\nvalid\t\tb\tc\n"
    corpus = tables.read(file(tmp_path, text))
    assert corpus.splits["train"] == [("a", "", "c")]
    assert corpus.splits["valid"] == [("", "b", "c")]
    assert corpus.left_out == {"no text": 1}


BEGIN = "begin the file with a line like split<TAB>src<TAB>tgt"
MALFORMED = {
    "nothing": ("", f"line 1: expected a header with 'split' first; {BEGIN}"),
    "no header": (
        "train\ta\tb\n" + SOUND,
        f"line 1: expected a header with 'split' first; {BEGIN}",
    ),
    "split elsewhere": (
        "src\tsplit\ttgt\n",
        f"line 1: expected a header with 'split' first; {BEGIN}",
    ),
    "one column": ("split\tsrc\n", f"line 1: expected two or more columns, got 1; {BEGIN}"),
    "twice": ("split\tde\tde\n", "line 1: column 'de' occurs 2 times; rename one"),
    "split twice": ("split\tde\tsplit\n", "line 1: column 'split' occurs 2 times; rename one"),
    "nameless": ("split\tde\t \n", f"line 1: a column has no name; {BEGIN}"),
    "missing tab": (
        SOUND + "train\tJa. Yes.\n",
        "line 4: expected 3 cells, got 2; cells are separated by one tab each",
    ),
    "surplus tab": (
        "split\tsrc\ttgt\ntrain\ta\tb\tc\n",
        "line 2: expected 3 cells, got 4; cells are separated by one tab each",
    ),
    "after an empty line": (
        SOUND + "\n\ntrain\n",
        "line 6: expected 3 cells, got 1; cells are separated by one tab each",
    ),
    "near split": (
        SOUND + "vaild\ta\tb\n",
        "line 4: unknown split 'vaild' (did you mean 'valid'?)",
    ),
    "far split": (SOUND + "3\ta\tb\n", "line 4: unknown split '3' (known: test, train, valid)"),
    "long split": (
        SOUND + "x" * 100_000 + "\ta\tb\n",
        f"line 4: unknown split '{'x' * 37}...' (known: test, train, valid)",
    ),
    "unprintable split": (
        SOUND + "\ufefftr\rain\u2028\x1b[31m\ta\tb\n",
        r"line 4: unknown split '\ufefftr\rain\u2028\x1b[31m' (known: test, train, valid)",
    ),
    "long column": (
        f"split\t{'c' * 100_000}\t{'c' * 100_000}\n",
        f"line 1: column '{'c' * 37}...' occurs 2 times; rename one",
    ),
    "carriage returns for line feeds": (
        SOUND.replace("\n", "\r"),
        "line 1: lines end with carriage returns alone; end them with line feeds",
    ),
    "no train": (
        "split\ta\tb\nvalid\tx\ty\n",
        "no line of split 'train'; train and valid both need some",
    ),
    "no valid": (
        "split\ta\tb\ntrain\tx\ty\n",
        "no line of split 'valid'; train and valid both need some",
    ),
    "none left": (
        "split\ta\tb\ntrain\tx\ty\ntrain\tx\ty\nvalid\tx\ty\n",
        "no line of split 'valid' is left (1 repeated, 1 in training); train and valid both "
        "need some",
    ),
    "not UTF-8": (
        SOUND.encode() + "train\tJä\tb\n".encode("latin-1"),
        "line 4: byte 8 (0xe4) is not UTF-8; convert the file",
    ),
    "cut within a letter": (
        SOUND.encode() + "ä".encode()[:1],
        "line 4: byte 1 (0xc3) is not UTF-8; convert the file",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_with_line_and_remedy(tmp_path: Path, case: str) -> None:
    text, said = MALFORMED[case]
    path = file(tmp_path, text)
    assert refusal(path) == f"{path}: {said}"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda raw: raw[:-9], "Compressed file ended before the end-of-stream marker"),
        (lambda raw: raw[:30] + b"\xff\xff" + raw[32:], ""),
        (lambda raw: raw[:-8] + b"\0" * 8, "CRC check failed"),
        (lambda raw: SOUND.encode(), "Not a gzipped file"),
    ],
    ids=["truncated", "garbled", "checksum", "not packed"],
)
def test_a_broken_packed_file_is_refused(tmp_path: Path, damage, words: str) -> None:
    path = file(tmp_path, damage(gzip.compress(SOUND.encode())), "x.tsv.gz")
    said = refusal(path)
    assert said.startswith(f"{path}: cannot be read ({words}")
    assert said.endswith("; name a whole file")
    assert "\n" not in said


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    assert refusal(path) == f"{path}: cannot be read (No such file or directory); name a file"


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    path = file(tmp_path, SOUND)
    first = tables.read(path)
    assert tables.read(path) is first
    file(tmp_path, SOUND + "test\ta\tb\n")
    assert tables.read(path).splits["test"] == [("a", "b")]


ROWS = {
    "train": [("Ja.", "Yes.\tIndeed.\r\n"), ("ä\u2028ö", "x")],
    "valid": [("Nein.", "No.")],
    "test": [],
}


@pytest.mark.parametrize("name", ["x.tsv", "x.tsv.gz"])
def test_what_is_written_is_read_back_with_breaks_as_spaces(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / name
    sha = tables.write(path, ("src", "tgt"), ROWS)
    corpus = tables.read(path)
    assert corpus.splits == ROWS | {"train": [("Ja.", "Yes. Indeed."), ("ä\u2028ö", "x")]}
    assert sha == hashlib.sha256(files.unpacked(path)).hexdigest()
    assert sha == tables.digest(("src", "tgt"), ROWS)
    assert corpus.sha == sha[:12]
    assert [each.name for each in path.parent.iterdir()] == [name]


def test_the_same_rows_are_the_same_bytes_under_any_name_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.write(tmp_path / "a.tsv.gz", ("src", "tgt"), ROWS)
    monkeypatch.setattr("time.time", lambda: 1.0)
    tables.write(tmp_path / "b.tsv.gz", ("src", "tgt"), ROWS)
    assert (tmp_path / "a.tsv.gz").read_bytes() == (tmp_path / "b.tsv.gz").read_bytes()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = file(tmp_path, SOUND)

    def fails(descriptor: int) -> None:
        raise error

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(type(error)):
        tables.write(path, ("src", "tgt"), ROWS)
    assert path.read_text() == SOUND
    assert list(tmp_path.iterdir()) == [path]
