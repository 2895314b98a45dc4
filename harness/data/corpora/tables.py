"""Parallel corpora as files: `split<TAB>column<TAB>column...`, UTF-8, no quoting. No torch.

An empty cell means that there is no translation into that column's language.
"""

import gzip
import hashlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from harness.data.corpora.holding import hold_out
from harness.data.files import decoded, unpacked
from harness.errors import ConfigError, did_you_mean

SPLITS = ("train", "valid", "test")
NEEDED = ("train", "valid")
ENDINGS = (".tsv", ".tsv.gz")
BREAKS = re.compile(r"[\t\n\r]+")
SHOWN = 40  # most characters of a cell in an error message
# Default_Ignorable_Code_Point of Unicode 16.0, DerivedCoreProperties.txt: no glyph, no width.
IGNORED = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
INVISIBLE = re.compile(f"[{IGNORED}]+")
VISIBLE = re.compile(rf"[^\s\x00-\x1f\x7f-\x9f\u2800{IGNORED}]")  # U+2800: an empty Braille cell
# Characters that normal form C leaves alone whatever stands beside them: Latin, Cyrillic, Chinese,
# Japanese, Korean and punctuation.
PLAIN = re.compile(
    r"[!-~\xa1-\xac\xae-\u02ff\u0400-\u0482\u048a-\u052f\u2010-\u2027\u2030-\u205e"
    r"\u3001-\u3029\u3041-\u3096\u30a1-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff5e \t]*"
)

Row = tuple[str, ...]
NOTHING: Mapping[str, int] = {}


class Corpus(NamedTuple):
    """A file's rows in its order, one stripped cell a column; shared by all readers: not to be
    changed."""

    columns: tuple[str, ...]  # without `split`
    splits: dict[str, list[Row]]  # train, valid, test, also where there is no test row
    left_out: dict[str, int]  # rows by reason: empty line, no text, repeated, in training
    sha: str  # first 12 hex digits of SHA-256 of the unpacked file


def read(path: Path) -> Corpus:
    """The corpus in a file; ConfigError names file, line, what is wrong and how to mend it."""
    try:
        stat = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a file") from None
    return _read(path, stat.st_mtime_ns, stat.st_size)


def cell(text: str) -> str:
    """The text as a cell can hold it: a space for each run of tabs and line ends; empty if no
    character of it is visible."""
    text = BREAKS.sub(" ", text).strip()
    return text if VISIBLE.search(text) else ""


def alike(row: Row) -> Row:
    """The row as it is compared with others: texts that look the same are the same. They are in
    normal form C, with single spaces, without characters of no width."""
    text = "\t".join(row)
    if PLAIN.fullmatch(text) and "  " not in text:
        return row  # in a fifth of the time
    return tuple(
        unicodedata.normalize("NFC", " ".join(INVISIBLE.sub("", text).split())) for text in row
    )


def digest(columns: Sequence[str], splits: Mapping[str, Sequence[Row]]) -> str:
    """SHA-256 of the unpacked file that `write` would make."""
    sha = hashlib.sha256()
    for line in _lines(columns, splits):
        sha.update(line)
    return sha.hexdigest()


def write(path: Path, columns: Sequence[str], splits: Mapping[str, Sequence[Row]]) -> str:
    """Writes a whole file or none, the same bytes for the same rows; SHA-256 of it unpacked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")  # two may build at once
    sha = hashlib.sha256()
    try:
        with temporary.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
                    for line in _lines(columns, splits):
                        sha.update(line)
                        packed.write(line)
            else:
                for line in _lines(columns, splits):
                    sha.update(line)
                    file.write(line)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return sha.hexdigest()


def _lines(columns: Sequence[str], splits: Mapping[str, Sequence[Row]]) -> Iterator[bytes]:
    yield ("\t".join(("split", *columns)) + "\n").encode()
    for split in SPLITS:
        for row in splits.get(split, ()):
            assert len(row) == len(columns)
            yield ("\t".join((split, *map(cell, row))) + "\n").encode()


@lru_cache(maxsize=8)
def _read(path: Path, changed: int, size: int) -> Corpus:
    """`changed` and `size` tell a new content from one that was read before."""
    raw = unpacked(path)
    # Split at line feeds only: texts may hold form feeds and other separators of lines.
    lines = decoded(path, raw).split("\n")
    columns = _header(path, lines[0])
    left_out: Counter[str] = Counter()
    sha = hashlib.sha256(raw).hexdigest()[:12]
    rows = _rows(path, lines, len(columns) + 1, left_out)
    return Corpus(columns, sifted(str(path), rows, left_out), dict(+left_out), sha)


def collected(
    name: str,
    columns: Row,
    rows: Iterable[tuple[str, Row]],
    held: Mapping[str, int],
    left_out: Counter[str],
) -> Corpus:
    """The corpus of these rows, as `write` would write it."""
    splits = sifted(name, rows, left_out, held)
    return Corpus(columns, splits, dict(+left_out), digest(columns, splits)[:12])


def sifted(
    where: str,
    rows: Iterable[tuple[str, Row]],
    left_out: Counter[str],
    held: Mapping[str, int] | None = None,
) -> dict[str, list[Row]]:
    """Rows by split without those that teach nothing or are held out and trained on; those are
    counted in `left_out`. So many training rows as `held` has for a split go there, if the rows
    are not those of a file. ConfigError, beginning with `where`, when no training row or no
    validation row is left."""
    kept: dict[str, dict[Row, Row]] = {split: {} for split in SPLITS}  # by what they are alike in
    for split, row in rows:
        if sum(map(bool, row)) < 2:
            left_out["no text"] += 1
        elif (key := alike(row)) in kept[split]:
            left_out["repeated"] += 1
        else:
            kept[split][key] = row
    wanted = held or NOTHING
    for split, size in wanted.items():
        if kept[split]:
            raise ConfigError(
                f"--hold-out {split}={size}: {where} has {split} pairs already; leave it out"
            )
    chosen = hold_out([*kept["train"]], wanted) if wanted else {}
    for split, keys in chosen.items():
        kept[split] = {key: kept["train"].pop(key) for key in keys}
    for split in SPLITS[1:]:
        known = kept[split].keys() & kept["train"].keys()
        left_out["in training"] += len(known)
        kept[split] = {key: row for key, row in kept[split].items() if key not in known}
    for split in NEEDED:
        if not kept[split]:
            lost = ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
            raise ConfigError(
                f"{where}: no line of split '{split}'{f' is left ({lost})' if lost else ''}; "
                "train and valid both need some"
                f"{', as --hold-out valid=1000 takes from train' if held is not None else ''}"
            )
    return {split: list(found.values()) for split, found in kept.items()}


def _rows(
    path: Path, lines: list[str], cells: int, left_out: Counter[str]
) -> Iterator[tuple[str, Row]]:
    last = len(lines) - (lines[-1] == "")  # a line feed at the end begins no line
    for number, line in enumerate(lines[1:last], start=2):
        if not line.strip("\r"):
            left_out["empty line"] += 1
            continue
        split, *texts = (part.strip() for part in line.split("\t"))
        if len(texts) + 1 != cells:
            raise ConfigError(
                f"{path}: line {number}: expected {cells} cells, got {len(texts) + 1}; "
                "cells are separated by one tab each"
            )
        if split not in SPLITS:
            hint = did_you_mean(split, SPLITS)
            raise ConfigError(f"{path}: line {number}: unknown split {_shown(split)}{hint}")
        yield split, tuple(text if VISIBLE.search(text) else "" for text in texts)


def _header(path: Path, line: str) -> tuple[str, ...]:
    if "\r" in line.rstrip("\r"):
        raise ConfigError(
            f"{path}: line 1: lines end with carriage returns alone; end them with line feeds"
        )
    first, *columns = (part.strip() for part in line.split("\t"))
    wanted = "begin the file with a line like split<TAB>src<TAB>tgt"
    if first != "split":
        raise ConfigError(f"{path}: line 1: expected a header with 'split' first; {wanted}")
    if len(columns) < 2:
        raise ConfigError(
            f"{path}: line 1: expected two or more columns, got {len(columns)}; {wanted}"
        )
    for name, times in Counter((first, *columns)).items():
        if not name:
            raise ConfigError(f"{path}: line 1: a column has no name; {wanted}")
        if times > 1:
            said = f"column {_shown(name)} occurs {times} times; rename one"
            raise ConfigError(f"{path}: line 1: {said}")
    return tuple(columns)


def _shown(text: str) -> str:
    """As an error message can hold it: short, and every character seen."""
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}...")
