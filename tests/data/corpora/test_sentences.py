"""Corpora from files of a sentence a line."""

import gzip
from pathlib import Path

import pytest

from harness.data.corpora.sentences import aligned
from harness.errors import ConfigError

GERMAN = ["Eins.", "Zwei\tund zwei.", "", "Vier.", "\u200b", "Sechs.", "Sieben.", "Acht.", "Neun."]
ENGLISH = ["One.", "Two and two.", "Three.", "Four.", "Five.", "Six.", "Seven.", "Eight.", "Nine."]
SIDES = (GERMAN, ENGLISH)
HELD = {"valid": 2, "test": 2}


def write(path: Path, lines: list[str], encoding: str = "utf-8", end: str = "\n") -> Path:
    raw = "".join(f"{line}{end}" for line in lines).encode(encoding)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def refusal(*given: str, held: dict[str, int] = HELD) -> str:
    with pytest.raises(ConfigError) as caught:
        aligned("mine", given, held)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_line_pairs_with_the_same_line(tmp_path: Path) -> None:
    de, en = write(tmp_path / "a.de", GERMAN), write(tmp_path / "a.en", ENGLISH)
    corpus, origin = aligned("mine", [f"{de},{en}"], HELD)
    assert corpus.columns == ("de", "en")
    assert [len(rows) for rows in corpus.splits.values()] == [3, 2, 2]
    whole = [row for rows in corpus.splits.values() for row in rows]
    pairs = [*zip(GERMAN, ENGLISH, strict=True)]
    pairs[1] = ("Zwei und zwei.", "Two and two.")
    assert sorted(whole) == sorted(pairs[:2] + pairs[3:4] + pairs[5:])
    assert corpus.left_out == {"no text": 2}
    assert origin == f"{de}, {en}"


@pytest.mark.parametrize(
    ("encoding", "end", "packed"),
    [("utf-16", "\n", False), ("utf-8-sig", "\r\n", False), ("utf-8", "\n", True)],
)
def test_encodings_line_ends_and_packing_change_nothing(
    tmp_path: Path, encoding: str, end: str, packed: bool
) -> None:
    plain = [write(tmp_path / "a.de", GERMAN), write(tmp_path / "a.en", ENGLISH)]
    ending = ".gz" if packed else ""
    others = [
        write(tmp_path / f"b.{name}{ending}", lines, encoding, end)
        for name, lines in (("de", GERMAN), ("en", ENGLISH))
    ]
    found = [aligned("mine", [",".join(map(str, files))], HELD)[0] for files in (plain, others)]
    assert found[0] == found[1]


def test_splits_of_their_own_are_named(tmp_path: Path) -> None:
    given = []
    for split, part in (("train", slice(4)), ("valid", slice(5, 7)), ("test", slice(7, 9))):
        de = write(tmp_path / f"{split}.de", GERMAN[part])
        en = write(tmp_path / f"{split}.en", ENGLISH[part])
        given.append(f"{split}={de},{en}")
    given[0] = given[0].removeprefix("train=")
    corpus, _ = aligned("mine", given, {})
    assert corpus.splits["valid"] == [("Sechs.", "Six."), ("Sieben.", "Seven.")]
    assert corpus.splits["test"] == [("Acht.", "Eight."), ("Neun.", "Nine.")]
    said = refusal(*given, held={"test": 1})
    assert said == "--hold-out test=1: mine has test pairs already; leave it out"
    said = refusal(given[0], given[0])
    assert said == f"--pairs {given[0]}: train is given twice; join its files"


@pytest.mark.parametrize("names", [("a.txt", "b.txt"), ("a", "b"), ("a.split", "b.en")])
def test_sides_whose_endings_do_not_tell_are_src_and_tgt(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    files = [write(tmp_path / name, lines) for name, lines in zip(names, SIDES, strict=True)]
    assert aligned("mine", [f"{files[0]},{files[1]}"], HELD)[0].columns == ("src", "tgt")


def test_a_name_that_holds_a_comma_is_quoted(tmp_path: Path) -> None:
    files = [write(tmp_path / f"a,b.{n}", x) for n, x in zip(("de", "en"), SIDES, strict=True)]
    corpus, _ = aligned("mine", [f'"{files[0]}","{files[1]}"'], HELD)
    assert corpus.columns == ("de", "en")


def test_files_that_do_not_pair_are_refused(tmp_path: Path) -> None:
    de, en = write(tmp_path / "a.de", GERMAN), write(tmp_path / "a.en", ENGLISH[:-1])
    said = f"{de}: 9 lines, but {en}: 8; a pair is the same line of both"
    assert refusal(f"{de},{en}") == said
    gone = tmp_path / "gone.en"
    said = f"{gone}: cannot be read (No such file or directory); name a whole file"
    assert refusal(f"{de},{gone}") == said
    en.write_bytes(b"caf\xe9\n")
    said = f"{en}: line 1: byte 4 (0xe9) is not UTF-8; convert the file"
    assert refusal(f"{de},{en}") == said
    for text in ("a.de", "a.de,b.en,c.fr", "a.de,a.de"):
        assert refusal(text).startswith(f"--pairs {text}: expected two files as FILE,FILE; ")
    assert refusal("a.de,") == "--pairs 'a.de,': an empty value; write v or v,v"


def test_pairs_in_another_order_than_the_first_are_refused(tmp_path: Path) -> None:
    de, en = write(tmp_path / "a.de", GERMAN), write(tmp_path / "a.en", ENGLISH)
    assert refusal(f"{de},{en}", f"valid={en},{de}", held={}) == (
        "--pairs: the files of train are in de, en, those of valid in en, de; name files in one "
        "order, with one ending per language"
    )


def test_without_pairs_to_validate_the_option_is_named(tmp_path: Path) -> None:
    de, en = write(tmp_path / "a.de", GERMAN), write(tmp_path / "a.en", ENGLISH)
    assert refusal(f"{de},{en}", held={}) == (
        "mine: no line of split 'valid' is left (2 no text); train and valid both need some, as "
        "--hold-out valid=1000 takes from train"
    )
