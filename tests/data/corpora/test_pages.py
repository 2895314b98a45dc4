"""Which blocks of a help page are texts, and where pages are found."""

from pathlib import Path

import pytest

from harness.data.corpora import pages
from harness.errors import ConfigError
from tests.data.corpora import help_pages as make

# Worked out by hand: what a reader of that block would be shown on a system of no special kind.
BLOCKS = {
    '<p id="par_id1">Plain <b>text</b>.</p>': {"par_id1": "Plain text."},
    '<h2 id="hd_id2">A heading</h2>': {"hd_id2": "A heading"},
    '<p id="bm_id3">Not for translators</p><p>No id</p>': {},
    '<p id="par_id4" class="bascode">Dim a</p>': {},
    '<p id="par_id5">A<br>b&amp;c&nbsp; d&shy;e\u200bf</p>': {"par_id5": "A b&c def"},
    '<p id="par_id6">A <img src="a.svg"> picture</p>': {},
    '<p id="par_id7">a<script>var x = "<p>";</script>b<style>p {}</style></p>': {"par_id7": "ab"},
    '<p id="par_id8">Press <span class="switchinline"><span class="MAC" hidden>Cmd</span>'
    '<span id="default8" hidden>Ctrl</span></span>+A</p>': {"par_id8": "Press Ctrl+A"},
    '<p id="par_id9"><span class="switchinline"><span class="UNIX">x</span></span> y</p>': {},
    '<p id="par_id10">In <span class="CALC">Calc</span></p>': {},
    '<p id="par_id11">First</p><p id="par_id11">Second</p>': {"par_id11": "First"},
    '<p id="par_id12"><p id="par_id13">Inner</p> outer</p>': {"par_id12": "Inner outer"},
    '<div><p id="par_id14">Not closed</div><p id="par_id15">After</p>': {
        "par_id14": "Not closed",
        "par_id15": "After",
    },
    '</i><p id="par_id16">Stray</i> end</p>': {"par_id16": "Stray end"},
    '<p id="par_id17"> \u200b </p><p id="par_id18">Never ended': {},
    '<p id="par_id19">Ko\u0308nig</p>': {"par_id19": "K\u00f6nig"},
    '<p id="par_id20"><span class="WIN"><img src="x"></span>Kept</p>': {"par_id20": "Kept"},
}


@pytest.mark.parametrize("html", BLOCKS)
def test_a_block_is_a_text_when_its_reader_is_shown_one(tmp_path: Path, html: str) -> None:
    make.write_pages(tmp_path, "de", {"swriter/a.html": html})
    expected = {("swriter/a.html", key): text for key, text in BLOCKS[html].items()}
    assert pages.texts(tmp_path, "de") == expected


def test_the_frame_of_a_page_is_not_read(tmp_path: Path) -> None:
    make.write_pages(tmp_path, "de", {"a.html": ""})
    assert pages.texts(tmp_path, "de") == {}
    folder = tmp_path / make.TEXT.format(language="de")
    (folder / "b.html").write_text('<p id="par_1">A page without one</p>')
    assert pages.texts(tmp_path, "de") == {("b.html", "par_1"): "A page without one"}


@pytest.mark.parametrize("packing", ["xz", "gz"])
def test_a_package_gives_the_same_texts_as_its_files_and_writes_nothing(
    tmp_path: Path, packing: str
) -> None:
    content = {"a/b.html": '<p id="par_1">Eins</p>', "c.html": '<p id="par_1">Zwei</p>'}
    make.write_pages(tmp_path / "unpacked", "pt-BR", content)
    deb = make.write_deb(tmp_path, "pt-BR", content, packing)
    found = pages.texts(tmp_path, "pt-BR")
    assert found == {("a/b.html", "par_1"): "Eins", ("c.html", "par_1"): "Zwei"}
    assert found == pages.texts(tmp_path / "unpacked", "pt-BR")
    assert sorted(tmp_path.iterdir()) == sorted([deb, tmp_path / "unpacked"])


def test_missing_languages_are_named_with_the_command_that_gets_them(tmp_path: Path) -> None:
    make.write_pages(tmp_path, "de", {"a.html": ""})
    make.write_deb(tmp_path, "fr", {})
    with pytest.raises(ConfigError) as caught:
        pages.require(tmp_path, ["de", "en-US", "fr", "zh-CN"])
    assert str(caught.value) == (
        f"{tmp_path}: no LibreOffice help in en-US, zh-CN; name with --from the folder where you "
        "called: apt-get download libreoffice-help-en-us libreoffice-help-zh-cn"
    )


def test_two_versions_of_a_package_are_refused(tmp_path: Path) -> None:
    deb = make.write_deb(tmp_path, "de", {})
    deb.with_name("libreoffice-help-de_9_all.deb").write_bytes(deb.read_bytes())
    with pytest.raises(ConfigError, match=r"2 packages hold the help in 'de' \(.*\); keep one"):
        pages.texts(tmp_path, "de")


@pytest.mark.parametrize("kept", [0, 7, 40, 200, 400])
def test_a_truncated_package_is_refused(tmp_path: Path, kept: int) -> None:
    deb = make.write_deb(tmp_path, "de", {"a.html": '<p id="par_1">Eins</p>'})
    deb.write_bytes(deb.read_bytes()[:kept])
    with pytest.raises(ConfigError) as caught:
        pages.texts(tmp_path, "de")
    assert str(caught.value).startswith(f"{deb}: ")
    assert "get it again" in str(caught.value)


def test_a_page_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    make.write_pages(tmp_path, "de", {"a/b.html": ""})
    (tmp_path / make.TEXT.format(language="de") / "a/b.html").write_bytes(b"ab\xff")
    with pytest.raises(ConfigError, match=r"help page de/a/b.html: byte 2 is not UTF-8"):
        pages.texts(tmp_path, "de")
