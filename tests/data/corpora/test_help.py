"""Pairs and rows of help pages: expected by hand, from the rules that the docstrings give."""

import codecs
import hashlib
from pathlib import Path

import pytest

from harness.data.corpora import help as help_corpora
from harness.data.corpora import tables
from harness.errors import ConfigError
from tests.data.corpora.help_pages import write_deb, write_pages

# Whole pages are held out, by a hash of their names.
TRAIN, VALID, TEST = "page0.html", "page47.html", "page44.html"


def blocks(*texts: str) -> str:
    return "".join(f'<p id="par_{i}">{text}</p>\n' for i, text in enumerate(texts))


def shuffled(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return sorted(rows, key=lambda row: hashlib.sha256("\t".join(row).encode()).hexdigest())


PAIRS = {  # German, English
    TRAIN: [
        ("Öffnet den Dialog. Wählen Sie die Farbe.", "Opens the dialog. Choose the colour now."),
        ("Zwei Teile sind hier sehr viele.", "Two. Parts here are many."),  # kept whole
        ("Gut so", "OK"),  # too short
        ("Writer Calc Impress", "Writer Calc Impress"),  # not translated
        ("Tippen Sie =SUM(A1) ein.", "Enter =SUM(A1) in a cell."),  # symbols
        ("Ja so.", "This is a rather long sentence about nothing."),  # lengths differ
        ("Microsoft Office Open XML Datei", "Microsoft Office Open XML file"),  # not translated
        ("Macht den Dialog auf.", "Opens the dialog."),  # another translation of one met twice
    ],
    VALID: [
        ("Löscht die Zeile darunter.", "Deletes the row below."),
        ("Wählen Sie die FARBE!", "Pick some other colour."),  # near a training pair
        ("Öffnet den Dialog.", "Opens the dialog."),  # on a page of training too
        ("Speichert das Dokument: sofort.", "Saves the document at once."),  # near a test pair
    ],
    TEST: [("Speichert das Dokument sofort.", "Saves the document immediately.")],
}


def write_pairs(root: Path) -> None:
    for language, side in (("de", 0), ("en-US", 1)):
        texts = {page: blocks(*(pair[side] for pair in pairs)) for page, pairs in PAIRS.items()}
        write_pages(root, language, texts)


def test_the_pairs_that_survive_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    corpus = help_corpora.german_english(tmp_path)
    assert corpus.columns == ("src", "tgt")
    assert corpus.splits == {
        "train": shuffled(
            [
                ("Öffnet den Dialog.", "Opens the dialog."),
                ("Wählen Sie die Farbe.", "Choose the colour now."),
                ("Zwei Teile sind hier sehr viele.", "Two. Parts here are many."),
            ]
        ),
        "valid": [("Löscht die Zeile darunter.", "Deletes the row below.")],
        "test": [("Speichert das Dokument sofort.", "Saves the document immediately.")],
    }
    assert corpus.left_out == {
        "too short or long": 1,
        "not translated": 2,
        "symbols": 1,
        "lengths differ": 1,
        "repeated": 1,
        "another translation": 1,
        "near another split": 2,
    }


def test_packages_and_unpacked_files_make_the_same_bytes(tmp_path: Path) -> None:
    write_pairs(tmp_path / "root")
    for language, side in (("de", 0), ("en-US", 1)):
        pages = {
            page: blocks(*(pair[side] for pair in pairs)) for page, pairs in reversed(PAIRS.items())
        }
        write_deb(tmp_path, language, pages)
    shas = set()
    for folder, name in ((tmp_path, "a.tsv.gz"), (tmp_path / "root", "b.tsv.gz")):
        corpus = help_corpora.german_english(folder)
        shas.add(tables.write(tmp_path / name, corpus.columns, corpus.splits)[:12])
        shas.add(corpus.sha)
        assert tables.read(tmp_path / name).splits == corpus.splits
    assert len(shas) == 1
    assert (tmp_path / "a.tsv.gz").read_bytes() == (tmp_path / "b.tsv.gz").read_bytes()


def test_help_that_is_not_there_is_asked_for_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"libreoffice-help-en-us libreoffice-help-de$"):
        help_corpora.german_english(tmp_path)
    with pytest.raises(ConfigError, match=r"libreoffice-help-en-us libreoffice-help-cs .*-zh-cn$"):
        help_corpora.multilingual(tmp_path)


@pytest.mark.parametrize(
    ("page", "split"),
    [
        *(("page989.html", "test"), ("page849.html", "valid")),  # 49 and 50 of a thousand
        *(("page2271.html", "valid"), ("page1206.html", "train")),  # 99 and 100
    ],
)
def test_a_page_is_held_out_by_the_hash_of_its_name(tmp_path: Path, page: str, split: str) -> None:
    write_pairs(tmp_path)
    write_pages(tmp_path, "de", {page: blocks("Ein Satz für die Probe.")})
    write_pages(tmp_path, "en-US", {page: blocks("One sentence as a trial.")})
    found = help_corpora.german_english(tmp_path).splits
    new = ("Ein Satz für die Probe.", "One sentence as a trial.")
    assert [name for name in tables.SPLITS if new in found[name]] == [split]


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("Eins. Zwei! Drei? Vier", ["Eins.", "Zwei!", "Drei?", "Vier"]),
        ("Das ist z. B. Wein, d.h. Trauben.", ["Das ist z. B. Wein, d.h. Trauben."]),
        ("Ein Fenster o. ä. Dinge.", ["Ein Fenster o. ä. Dinge."]),
        ("Use it, e.g. Writer, etc. Then stop.", ["Use it, e.g. Writer, etc. Then stop."]),
        ("Am 3. Tag. 12. Monat.", ["Am 3. Tag.", "12. Monat."]),
        ("In 1999. Danach.", ["In 1999.", "Danach."]),
        ("Warten ... Dann weiter.", ["Warten ... Dann weiter."]),
        ('Er sagt "Ja." Sie nicht.', ['Er sagt "Ja."', "Sie nicht."]),
        ("Ein punkt. klein geschrieben.", ["Ein punkt. klein geschrieben."]),
        ("Marz. (Klammer) „Zitat“.", ["Marz.", "(Klammer) „Zitat“."]),
        ("", []),
    ],
)
def test_a_text_is_cut_where_a_sentence_ends(text: str, cut: list[str]) -> None:
    assert help_corpora.sentences(text) == cut


@pytest.mark.parametrize(
    ("text", "english", "reason"),
    [
        ("Drei kurze Wörter", "Three short words", ""),
        ("Zwei Wörter", "Two words", "too short or long"),
        ("Wort", "In one word", "too short or long"),
        ("wort " * 51, "word " * 50, "too short or long"),
        ("wort " * 50, "word " * 51, "too short or long"),
        ("wortes " * 46, "word " * 40, "too short or long"),  # 321 characters
        ("a b c", "a b c d e fg", "lengths differ"),
        ("ein sehr langer deutscher Satz", "not so long a", "lengths differ"),
        ("Der Pfad ist /usr", "The path is /usr", ""),
        ("/usr ist ein Pfad", "That is one path", "symbols"),
        ("Siehe http://a.b", "Look for it there", "symbols"),
        ("Nutzen Sie SUM() hier", "You can use it there", "symbols"),
        ("Die Summe =A.SUM(x) hier", "You can use it there now", "symbols"),
        ("Eins;zwei und drei", "One two and three", "symbols"),
        ("Eins zwei dr\ufffdi", "One two three", "symbols"),
        ("1234 5678 ab 90", "All these numbers", "symbols"),
        ("Impress Writer Calc Fenster", "Impress Writer Calc window", "not translated"),
        ("Impress Writer und Fenster", "Impress Writer and window", ""),
    ],
)
def test_a_pair_is_kept_or_left_out_for_a_reason(text: str, english: str, reason: str) -> None:
    assert help_corpora.fault(text.strip(), english.strip(), 50) == reason


def test_a_text_without_spaces_may_be_short_but_not_longer_than_its_english() -> None:
    english = "Opens the dialog where you choose."
    assert help_corpora.fault("ダイアログを開きます。", english, 40, spaces=False) == ""
    assert help_corpora.fault("ダイアログを開きます。", english, 40) == "too short or long"
    long = "ダイアログを開きます" * 5
    assert help_corpora.fault(long, english, 40, spaces=False) == "lengths differ"


def test_near_repetitions_fold_to_the_same() -> None:
    assert help_corpora.folded("Tabelle 12: STRASSE!") == help_corpora.folded("tabelle 34 straße")
    assert help_corpora.folded("Tabelle") != help_corpora.folded("Tabellen")


ALL = "Every one of these languages has this sentence."
MOST = "Fourteen of these languages have that sentence."
FEW = "Thirteen languages have this one as we see here."
TWO = "There are two sentences here. Such texts are left."
MANY = "a " * 26
HELD = "Here is a sentence which is only for validation."
NEAR = "Every one of these languages, has this sentence!"
TRIED = "Here is a sentence which is only for the test set."


def translated(text: str, language: str) -> str:
    return f"{codecs.encode(text, 'rot13').removesuffix('.')} {language}."


def write_rows(root: Path) -> None:
    english = {TRAIN: [ALL, MOST, FEW, TWO, MANY], VALID: [HELD, NEAR], TEST: [TRIED]}
    english["page1.html"] = [ALL, ALL]
    write_pages(root, "en-US", {page: blocks(*texts) for page, texts in english.items()})
    for i, language in enumerate(help_corpora.LANGUAGES):
        pages = {
            page: [
                ""
                if (text == MOST and i < 3) or (text == FEW and i < 4)
                else translated(text, language)
                for text in texts
            ]
            for page, texts in english.items()
        }
        if language == "fr":  # said otherwise once, of three times
            pages[TRAIN][0] = translated(ALL, "xx")
        write_pages(root, language, {page: blocks(*texts) for page, texts in pages.items()})


def row(text: str, empty: int = 0) -> tuple[str, ...]:
    found = [translated(text, language) for language in help_corpora.LANGUAGES]
    return (text, *[""] * empty, *found[empty:])


def test_rows_of_many_languages_are_those_worked_out_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path)
    corpus = help_corpora.multilingual(tmp_path)
    assert corpus.columns[:3] == ("en", "cs", "de") and len(corpus.columns) == 18
    train = sorted([row(ALL), row(MOST, 3)], key=_key)
    assert corpus.splits == {"train": train, "valid": [row(HELD)], "test": [row(TRIED)]}
    assert corpus.left_out == {"fewer than 14 translations": 1, "near another row": 1}

    monkeypatch.setattr(help_corpora, "ROWS", {"train": 1, "valid": 300, "test": 0})
    fewer = help_corpora.multilingual(tmp_path)
    assert fewer.splits == {"train": train[:1], "valid": [row(HELD)], "test": []}
    assert fewer.left_out["more than wanted"] == 2
    assert fewer.sha != corpus.sha


def _key(each: tuple[str, ...]) -> str:
    return hashlib.sha256(each[0].encode()).hexdigest()
