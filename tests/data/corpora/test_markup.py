"""Markup that was taken for text."""

from pathlib import Path

import pytest

from harness.data.corpora import markup


def notes(folder: Path, *cells: str) -> list[str]:
    path = folder / "x.tsv"
    rows = [f"train\t{cell}\tx" for cell in cells]
    path.write_text("\n".join(["split\ta\tb", *rows, ""]), encoding="utf-8")
    return markup.notes(path)


@pytest.mark.parametrize(
    "tag", ['<seg id="12">', "</seg>", "<b>", "<br/>", "<br />", "<a href='x'>", "<x:y>", "<!-- c"]
)
def test_tags_are_named_with_line_and_count(tmp_path: Path, tag: str) -> None:
    (note,) = notes(tmp_path, "plain", f"some {tag}text", "more", f"{tag}{tag}")
    assert note.startswith("2 lines with tags, the first is line 3: ")
    assert tag.split(" c")[0] in note


@pytest.mark.parametrize("entity", ["&amp;", "&quot;", "&#39;", "&#x27;", "&nbsp;", "&eacute;"])
def test_entities_are_named_with_line_and_count(tmp_path: Path, entity: str) -> None:
    assert notes(tmp_path, f"a {entity} b") == [
        f"1 line with entities, the first is line 2: {entity!r}"
    ]


def test_text_is_no_markup(tmp_path: Path) -> None:
    plain = [
        "a < b > c",
        "1<2",
        "AT&T; more",
        "R&D",
        "x <- y -> z",
        "<3",
        "a & b;",
        "&; <>",
        "i<n>",
    ]
    assert notes(tmp_path, *plain[:-1]) == []
    assert len(notes(tmp_path, *plain)) == 1  # what could be a tag is named: it is a note
