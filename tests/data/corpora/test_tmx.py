"""Corpora from translation memories."""

import gzip
from pathlib import Path

import pytest

from harness.data.corpora import tmx
from harness.data.corpora.tmx import memory
from harness.errors import ConfigError

HEAD = '<?xml version="1.0"?>\n<tmx version="1.4">\n<header srclang="de" datatype="xml"/>\n<body>\n'
END = "</body>\n</tmx>\n"
HELD = {"valid": 1}


def unit(de: str, en: str, more: str = "") -> str:
    english = f'<tuv xml:lang="en-US"><seg>{en}</seg></tuv>'
    return f'<tu tuid="1">{english}<tuv xml:lang="de"><seg>{de}</seg></tuv>{more}</tu>\n'


UNITS = [unit(f"wort {i}", f"word {i}") for i in range(5)]


def write(path: Path, text: str | bytes) -> Path:
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def texts(path: Path, **columns: str) -> list[tuple[str, ...]]:
    corpus, origin = memory("mine", path, columns or None, HELD)
    assert origin == str(path)
    return sorted(row for rows in corpus.splits.values() for row in rows)


def refusal(path: Path, columns: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        memory("mine", path, columns, HELD)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_units_are_rows_and_the_source_language_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, chunk: int
) -> None:
    monkeypatch.setattr(tmx, "CHUNK", chunk)
    head = HEAD.replace("?>", f' encoding="{encoding}"?>', 1)
    whole = head + "".join([*UNITS, unit("groß", "big")]) + END
    path = write(tmp_path / "a.tmx.gz", whole.encode(encoding))
    corpus, _ = memory("mine", path, None, HELD)
    assert corpus.columns == ("de", "en-US")
    assert len(corpus.splits["valid"]) == 1
    expected = [("groß", "big"), *((f"wort {i}", f"word {i}") for i in range(5))]
    assert texts(path) == expected
    assert texts(path, tgt="EN_us", src="de") == sorted((b, a) for a, b in expected)


def test_inline_codes_are_left_out_and_what_they_mark_is_kept(tmp_path: Path) -> None:
    marked = (
        'Click <bpt i="1">&lt;b&gt;</bpt>File<ept i="1">&lt;/b&gt;</ept>, <hi>then</hi>\n'
        '  <ph x="1">{0<sub>title</sub>}</ph>A &amp; B<it pos="end">&lt;/p&gt;</it>.'
    )
    path = write(tmp_path / "a.tmx", HEAD + unit("Datei", marked) + UNITS[0] + END)
    assert texts(path)[0] == ("Datei", "Click File, then A & B.")


def test_units_of_more_languages_are_rows_with_empty_cells(tmp_path: Path) -> None:
    french = '<tuv lang="fr"><seg>mot</seg></tuv>'
    again = '<tuv xml:lang="DE"><seg>ander wort</seg></tuv>'
    text = HEAD + "".join(UNITS) + unit("x", "y", french + again) + unit("", "alone") + END
    path = write(tmp_path / "a.tmx", text)
    corpus, _ = memory("mine", path, None, HELD)
    assert corpus.columns == ("de", "en-US", "fr")
    assert ("x", "y", "mot") in texts(path)
    assert corpus.left_out == {"another translation": 1, "no text": 1}


def test_a_document_type_is_not_fetched_and_no_entity_is_expanded(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret", "secret")
    kind = '<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx '
    path = write(tmp_path / "a.tmx", HEAD.replace("<tmx ", kind) + "".join(UNITS) + END)
    assert len(texts(path)) == 5
    for declared in (
        '<!ENTITY a "aaaaaaaaaa"> <!ENTITY b "&a;&a;&a;&a;">',
        f'<!ENTITY a SYSTEM "{secret.as_uri()}">',
        f'<!ENTITY % a SYSTEM "{secret.as_uri()}"> %a;',
    ):
        kind = f"<!DOCTYPE tmx [{declared}]>\n<tmx "
        path = write(tmp_path / "b.tmx", HEAD.replace("<tmx ", kind) + unit("&a;", "x") + END)
        said = f"{path}: line 2: declares the entity 'a'; write its text out where it is used"
        assert refusal(path) == said


def test_an_entity_that_no_one_declares_is_refused_and_not_dropped(tmp_path: Path) -> None:
    kind = '<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx '
    text = HEAD.replace("<tmx ", kind) + UNITS[0] + unit("a&nbsp;b", "x") + END
    path = write(tmp_path / "a.tmx", text)
    assert refusal(path) == f"{path}: line 7: unknown entity '&nbsp;'; write its text out"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: no element found; mend the file"),
        ("plain text", "line 1: syntax error; mend the file"),
        ("<html/>", "line 1: expected <tmx>, found <html>; name a TMX file"),
        (HEAD + UNITS[0], "line 6: no element found; mend the file"),
        (HEAD + "<tu><seg>x</tu>", "line 5: mismatched tag; mend the file"),
        (
            HEAD + "<tu>\n<tuv><seg>x</seg></tuv></tu>" + END,
            "line 6: expected <tuv xml:lang=...> within <tu>; mend the file",
        ),
        (HEAD + END, "two languages are needed, found none"),
        ('<?xml version="1.0" encoding="klingon"?><tmx/>', "unknown encoding: klingon; convert"),
        ('<?xml version="1.0" encoding="shift_jis"?><tmx/>', "multi-byte encodings are not supp"),
    ],
)
def test_a_file_that_is_no_memory_is_refused_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    path = write(tmp_path / "a.tmx", text)
    assert refusal(path).startswith(f"{path}: {said}")


def test_a_broken_or_missing_file_and_an_absent_language_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tmx.gz", HEAD + "".join(UNITS) + END)
    said = f"{path}: no language 'fr' (known: de, en-US); choose with --columns"
    assert refusal(path, {"de": "de", "fr": "fr"}) == said
    path.write_bytes(path.read_bytes()[:-9])
    assert refusal(path).startswith(f"{path}: cannot be read (Compressed file ended before")
    path.unlink()
    assert refusal(path) == f"{path}: cannot be read (No such file or directory); name a whole file"
