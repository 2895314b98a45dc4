"""Files that a user names: which are found, and what is read of them."""

import codecs
import gzip
from pathlib import Path

import pytest

from harness.data import files
from harness.errors import ConfigError

TEXT = "Grüße\tgreetings\n字 𝄞\n"
MARKED = {
    "UTF-8": codecs.BOM_UTF8 + TEXT.encode(),
    "UTF-16 little": codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
    "UTF-16 big": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
    "UTF-32 little": codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"),
    "UTF-32 big": codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"),
}


@pytest.mark.parametrize("encoding", MARKED)
def test_a_byte_order_mark_decides_and_is_no_text(encoding: str) -> None:
    assert files.decoded(Path("x"), MARKED[encoding]) == TEXT
    assert files.decoded(Path("x"), TEXT.encode()) == TEXT


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"ab\nc\xe4", "line 2: byte 2 (0xe4) is not UTF-8; convert the file"),
        (codecs.BOM_UTF8 + b"\xe4", "line 1: byte 1 (0xe4) is not UTF-8; convert the file"),
        (codecs.BOM_UTF16_LE + b"a\0b", "byte 5 is not UTF-16; convert the file"),
        (
            "Only an old system".encode("utf-16-le"),
            "looks like UTF-16 without a byte order mark; convert the file",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(raw: bytes, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        files.decoded(Path("x.txt"), raw)
    assert str(caught.value) == f"x.txt: {said}"


def test_hidden_files_are_found_only_by_a_pattern_that_names_them(tmp_path: Path) -> None:
    for name in ("b", "a/c", ".DS_Store", ".git/HEAD", "a/.d/e", "a/._c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = files.shown(tmp_path.rglob("*"), tmp_path)
    assert found == [tmp_path / "a" / "c", tmp_path / "b"]
    assert files.shown(tmp_path.glob(".git/*"), tmp_path, ".git/*") == [tmp_path / ".git" / "HEAD"]
    inner = tmp_path / "a" / ".d"
    assert files.shown(inner.rglob("*"), inner) == [inner / "e"]


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.expanded(Path("~/x")) == tmp_path / "x"
    assert files.expanded(Path("x/~")) == Path("x/~")
    with pytest.raises(ConfigError, match=r"^~nobody-here/x: .*; write the path out$"):
        files.expanded(Path("~nobody-here/x"))


def test_a_packed_file_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"abc"))
    assert files.unpacked(path) == b"abc"
