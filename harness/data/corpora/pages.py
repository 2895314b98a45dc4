"""Pages of LibreOffice's help, one language at a time: the texts by page and translation key.

A block of text has the same id on the same page in all languages: pairs are aligned by their
makers, not by a guess.
"""

import io
import lzma
import tarfile
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from harness.errors import ConfigError

INSTALLED = "usr/share/libreoffice/help"
CONTENT = 'id="DisplayArea"'  # what comes before is the frame of every page

Key = tuple[str, str]  # a page, and the id of a block on it

BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
KEYS = ("par_", "hd_")  # ids that translators see; others are made up by the page's maker
CODE = {"code", "bascode", "pycode", "sqlcode"}
WITHOUT_END = {
    *("area", "base", "br", "col", "embed", "hr", "img", "input"),
    *("link", "meta", "param", "source", "track", "wbr"),
}
SYSTEMS = {"MAC", "UNIX", "WIN"}
APPLICATIONS = {"BASE", "BASIC", "CALC", "CHART", "DRAW", "IMPRESS", "MATH", "WRITER"}
# Soft hyphen, zero width space, marks of direction, word joiner, byte order mark.
UNSEEN = dict.fromkeys((0xAD, 0x200B, 0x200E, 0x200F, 0x2060, 0xFEFF))


def texts(folder: Path, language: str) -> dict[Key, str]:
    """All blocks of text in a language that the folder has; ConfigError for broken files.

    The folder is the root of a system or of unpacked packages, or it holds Debian packages.
    """
    found: dict[Key, str] = {}
    for page, raw in _pages(folder, language):
        try:
            html = raw.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{folder}: help page {language}/{page}: byte {error.start} is not UTF-8; "
                "get the package again"
            ) from None
        _, frame, content = html.partition(CONTENT)
        reader = PageReader()
        reader.feed(content.partition(">")[2] if frame else html)
        reader.close()
        found.update({(page, key): text for key, text in reader.texts.items()})
    return found


def require(folder: Path, languages: Iterable[str]) -> None:
    """ConfigError that names the Debian packages of all languages that a folder lacks."""
    missing = [
        language
        for language in languages
        if not _unpacked(folder, language).is_dir() and not _packed(folder, language)
    ]
    if missing:
        packages = " ".join(map(_package, missing))
        raise ConfigError(
            f"{folder}: no LibreOffice help in {', '.join(missing)}; name with --from the folder "
            f"where you called: apt-get download {packages}"
        )


def _pages(folder: Path, language: str) -> Iterator[tuple[str, bytes]]:
    unpacked, packed = _unpacked(folder, language), _packed(folder, language)
    if unpacked.is_dir():
        for path in sorted(unpacked.rglob("*.html")):
            yield path.relative_to(unpacked).as_posix(), path.read_bytes()
    elif len(packed) == 1:
        yield from _members(packed[0], f"{INSTALLED}/{language}/text/")
    else:
        raise ConfigError(
            f"{folder}: {len(packed)} packages hold the help in '{language}' "
            f"({', '.join(path.name for path in packed)}); keep one"
        )


def _unpacked(folder: Path, language: str) -> Path:
    return folder / INSTALLED / language / "text"


def _packed(folder: Path, language: str) -> list[Path]:
    return sorted(folder.glob(f"{_package(language)}_*.deb"))


def _package(language: str) -> str:
    return f"libreoffice-help-{language.lower()}"


def _members(deb: Path, below: str) -> Iterator[tuple[str, bytes]]:
    """The HTML files below a folder of a Debian package; nothing is written."""
    try:
        with tarfile.open(fileobj=io.BytesIO(_data(deb)), mode="r:*") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.isfile() and name.startswith(below) and name.endswith(".html"):
                    file = archive.extractfile(member)
                    assert file is not None
                    yield name.removeprefix(below), file.read()
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise ConfigError(
            f"{deb}: cannot be read ({error}); get it again, or unpack it with 'dpkg-deb -x'"
        ) from None


def _data(deb: Path) -> bytes:
    """data.tar of a package: an ar archive has headers of 60 bytes, and members at even places."""
    raw = deb.read_bytes()
    place = 8
    while raw.startswith(b"!<arch>\n") and place + 60 <= len(raw):
        header = raw[place : place + 60]
        name, size = header[:16].strip(b" /"), header[48:58].strip()
        if not size.isdigit():
            break
        start, place = place + 60, place + 60 + int(size) + int(size) % 2
        if name.startswith(b"data.tar"):
            return raw[start : start + int(size)]
    raise ConfigError(f"{deb}: not a Debian package; get it again")


@dataclass
class Block:
    """A paragraph or heading that is being read."""

    key: str
    level: int  # of open elements, itself included
    pieces: list[str] = field(default_factory=list)
    unusable: bool = False  # it holds a picture, or varies with the application
    switches: int = 0  # places where the text varies, ...
    defaults: int = 0  # ... and those of them that say what holds elsewhere


class PageReader(HTMLParser):
    """Collects the texts of a page by id.

    Where a text varies with the operating system, what holds on the other systems is kept.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: dict[str, str] = {}
        self._open: list[tuple[str, bool]] = []  # tag, and whether its text is left out
        self._silent = 0  # open elements whose text is left out
        self._block: Block | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        kind, key = said.get("class", ""), said.get("id", "")
        if tag in WITHOUT_END:
            if self._block and not self._silent:
                self._block.unusable |= tag == "img"
                self._block.pieces.append(" " if tag == "br" else "")
            return
        if self._block and tag == "span":
            self._block.unusable |= kind in APPLICATIONS
            self._block.switches += kind == "switchinline"
            self._block.defaults += key.startswith("default") and "hidden" in said
        silent = tag in ("script", "style") or (tag == "span" and kind in SYSTEMS)
        self._silent += silent
        self._open.append((tag, silent))
        if not self._block and tag in BLOCKS and key.startswith(KEYS) and kind not in CODE:
            self._block = Block(key, len(self._open))

    def handle_endtag(self, tag: str) -> None:
        if all(tag != each for each, _ in self._open):  # as of <br>, or one too many
            return
        closed = None
        while closed != tag:  # elements within it that were never closed end with it
            closed, silent = self._open.pop()
            self._silent -= silent
            if self._block and len(self._open) < self._block.level:
                self._finish(self._block)

    def handle_data(self, data: str) -> None:
        if self._block and not self._silent:
            self._block.pieces.append(data)

    def _finish(self, block: Block) -> None:
        self._block = None
        text = unicodedata.normalize("NFC", "".join(block.pieces)).translate(UNSEEN)
        text = " ".join(text.split())
        if text and not block.unusable and block.switches == block.defaults:
            self.texts.setdefault(block.key, text)
