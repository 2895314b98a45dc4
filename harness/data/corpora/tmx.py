"""Parallel corpora from translation memories (TMX 1.4b), read piece by piece.

Nothing outside the file is read, and a file that declares entities is refused: a DOCTYPE may name
a DTD, which no one fetches.
"""

import gzip
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from harness.data.corpora.tables import Corpus, cell, collected
from harness.errors import ConfigError, did_you_mean

CODES = {"bpt", "ept", "it", "ph", "ut"}  # what they hold is markup of the original document
CHUNK = 1 << 20  # bytes


def memory(
    name: str, path: Path, columns: Mapping[str, str] | None, held: Mapping[str, int]
) -> tuple[Corpus, str]:
    """The corpus of a TMX file, .gz unpacked, with a row for each unit, and in words what it was
    read from. Columns are the file's languages, that of its sources first, or those of `columns`
    (ours: theirs). ConfigError names the line that is wrong."""
    memory = _Memory(path)
    memory.read()
    spelled = memory.languages
    if columns is None:
        first = sorted(spelled, key=lambda each: each != memory.source)  # the others as they come
        columns = {spelled[each]: each for each in first}
    if len(columns) < 2:
        found = ", ".join(spelled.values()) or "none"
        raise ConfigError(f"{path}: two languages are needed, found {found}")
    for theirs in columns.values():
        if _plain(theirs) not in spelled:
            hint = did_you_mean(theirs, spelled.values())
            raise ConfigError(f"{path}: no language '{theirs}'{hint}; choose with --columns")
    wanted = [_plain(each) for each in columns.values()]
    rows = (("train", tuple(unit.get(each, "") for each in wanted)) for unit in memory.units)
    return collected(name, tuple(columns), rows, held, memory.left_out), str(path)


class _Memory:
    """Units of a file, as they are read: a text for each language, with its inline codes left out;
    of several in a language the first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.units: list[dict[str, str]] = []
        self.languages: dict[str, str] = {}  # as compared: as first written
        self.source = ""
        self.left_out: Counter[str] = Counter()
        self._open: list[str] = []  # elements
        self._language = ""
        self._text: list[str] = []
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.EntityDeclHandler = self._declared
        self._parser.SkippedEntityHandler = self._skipped

    def read(self) -> None:
        try:
            with (gzip.open if self.path.suffix == ".gz" else open)(self.path, "rb") as file:
                while chunk := file.read(CHUNK):
                    self._parser.Parse(chunk, False)
                self._parser.Parse(b"", True)
        except (OSError, EOFError, zlib.error) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"{self.path}: cannot be read ({why}); name a whole file") from None
        except expat.ExpatError as error:
            why = expat.ErrorString(error.code)
            raise ConfigError(f"{self.path}: line {error.lineno}: {why}; mend the file") from None
        except (LookupError, ValueError) as error:  # of an encoding that is unknown, or unsupported
            raise ConfigError(f"{self.path}: {error}; convert the file to UTF-8") from None

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._open and tag != "tmx":
            self._refuse(f"expected <tmx>, found <{tag}>; name a TMX file")
        self._open.append(tag)
        if tag == "header":
            self.source = _plain(attributes.get("srclang", ""))
        elif tag == "tu":
            self.units.append({})
        elif tag == "tuv":
            language = attributes.get("xml:lang", attributes.get("lang", "")).strip()
            if not language or "tu" not in self._open:
                self._refuse("expected <tuv xml:lang=...> within <tu>; mend the file")
            self._language = _plain(language)
            self.languages.setdefault(self._language, language)
        elif tag == "seg":
            self._text = []

    def _end(self, tag: str) -> None:
        self._open.pop()
        if tag == "seg" and "tuv" in self._open:
            unit, text = self.units[-1], cell(" ".join("".join(self._text).split()))
            if unit.setdefault(self._language, text) != text:
                self.left_out["another translation"] += 1

    def _characters(self, text: str) -> None:
        if "seg" in self._open and not CODES & {*self._open}:
            self._text.append(text)

    def _declared(self, name: str, *_: object) -> None:
        self._refuse(f"declares the entity '{name}'; write its text out where it is used")

    def _skipped(self, name: str, parameter: bool) -> None:
        if not parameter:
            self._refuse(f"unknown entity '&{name};'; write its text out")

    def _refuse(self, why: str) -> NoReturn:
        raise ConfigError(f"{self.path}: line {self._parser.CurrentLineNumber}: {why}")


def _plain(language: str) -> str:
    """As languages are compared: en-US, EN_us."""
    return language.replace("_", "-").lower()
