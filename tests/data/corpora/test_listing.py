"""What is known of corpora by name, and what a reader is told of one."""

from pathlib import Path

import pytest

from harness.data.corpora import help as help_corpora
from harness.data.corpora import hub, listing, tables
from harness.errors import ConfigError

ROWS = {"train": [("a b c", "d"), ("a", "d e")], "valid": [("x", "y")], "test": []}


def test_help_de_en_is_the_file_deu_eng_and_others_are_named_as_they_are(tmp_path: Path) -> None:
    assert listing.place("help-de-en", tmp_path) == tmp_path / "deu-eng.tsv.gz"
    assert listing.place("multi30k", tmp_path) == tmp_path / "multi30k.tsv.gz"
    tables.write(tmp_path / "deu-eng.tsv", ("src", "tgt"), ROWS)
    assert listing.locate("help-de-en", tmp_path) == tmp_path / "deu-eng.tsv"
    assert listing.named(tmp_path / "deu-eng.tsv") == "help-de-en"
    assert listing.locate(str(tmp_path / "any.tsv"), Path("data")) == tmp_path / "any.tsv"


def test_a_corpus_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    for name in ("a.tsv", "a.tsv.gz"):
        tables.write(tmp_path / name, ("src", "tgt"), ROWS)
    with pytest.raises(ConfigError, match=r"a.tsv: a.tsv.gz is there too; remove one of them"):
        listing.place("a", tmp_path)
    (row,) = (row for row in listing.rows(tmp_path) if row["name"] == "a")
    assert "remove one of them" in row["error"]


def test_a_missing_corpus_is_refused_with_what_makes_it(tmp_path: Path) -> None:
    for folder in (tmp_path, Path("data")):
        with pytest.raises(ConfigError) as caught:
            listing.locate("wmt17", folder)
        named = "" if folder == Path("data") else f" --data {folder}"
        assert str(caught.value).endswith(f"make it with 'harness data build wmt17{named}'")
    tables.write(tmp_path / "own.tsv", ("src", "tgt"), ROWS)
    with pytest.raises(ConfigError, match=r"no corpus 'ownn' \(did you mean 'own'\?\)"):
        listing.locate("ownn", tmp_path)


def test_a_link_to_nothing_is_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "own.tsv").symlink_to(tmp_path / "gone")
    path = listing.locate("own", tmp_path)
    with pytest.raises(ConfigError, match=r"own.tsv: cannot be read \(No such file"):
        tables.read(path)
    (row,) = (row for row in listing.rows(tmp_path) if row["name"] == "own")
    assert "cannot be read" in row["error"]


def test_each_known_corpus_can_be_built(tmp_path: Path) -> None:
    for name in listing.KNOWN:
        assert name.startswith("help-") or hub.preset(name) is not None
    assert set(hub.PRESETS) < set(listing.KNOWN)
    assert listing.KNOWN["help-de-en"].licence == "MPL-2.0"
    assert len(help_corpora.LANGUAGES) == 17


def test_a_row_counts_pairs_or_says_what_is_wrong(tmp_path: Path) -> None:
    tables.write(tmp_path / "own.tsv.gz", ("src", "tgt"), ROWS)
    (tmp_path / "bad.tsv").write_text("nothing\n")
    (tmp_path / "notes.txt").write_text("nothing\n")
    (tmp_path / "._own.tsv.gz").write_bytes(b"\0\5")  # hidden: what a Mac leaves behind
    rows = {row["name"]: row for row in listing.rows(tmp_path)}
    assert [*rows] == [*listing.KNOWN, "bad", "own"]
    own = {"name": "own", "present": True, "where": str(tmp_path / "own.tsv.gz")}
    own |= {"train": 2, "valid": 1, "test": 0, "licence": "see the source"}
    assert rows["own"] == own | {"builds": "", "error": ""}
    assert rows["bad"]["error"].startswith(f"{tmp_path / 'bad.tsv'}: line 1: expected a header")
    assert rows["bad"]["present"] and rows["bad"]["train"] is None
    assert not rows["wmt17"]["present"] and rows["wmt17"]["error"] == ""


def test_percentiles_are_of_words_in_texts_that_are_there() -> None:
    texts = [("w " * n, "") for n in range(1, 101)]
    corpus = tables.Corpus(("a", "b"), {"train": texts, "valid": [], "test": []}, {}, "")
    assert listing.lengths(corpus) == {"a": [5, 50, 95, 100, 100], "b": [0, 0, 0, 0, 0]}


def test_characters_that_stand_for_none_are_counted() -> None:
    splits = {"train": [("ab\ufffd\0", "\ue000ä字 ")], "valid": [], "test": []}
    assert listing.lost_share(tables.Corpus(("a", "b"), splits, {}, "")) == 3 / 8
