"""runs.csv and its kin as rows of text, read in one way by every command. No torch.

A file that went through a spreadsheet or pandas is taken as long as nothing is lost: a byte order
mark, a column of numbers without a name, '1.0' for '1', and further columns, which stay.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from harness.errors import ConfigError
from harness.results.columns import COST, DIGESTS, FORMER, INTEGERS, OUTCOMES, Row, is_number
from harness.results.files import replace

# Older names of columns: a file is read under today's, and written so when its rows change.
RENAMED = {"branch_variance_cross": "branch_mean_square_ratio_cross"}
REQUIRED = {"run_id", "outcome", "data_sha"}
DIGEST = re.compile(r"[0-9a-f]{12,40}")
WITHOUT_NAME = re.compile(r"(Unnamed: \d+)?")  # as pandas calls an index that it reads back
WHOLE = re.compile(r"-?\d+")


def read(path: Path) -> Sequence[Row]:
    """The rows of a file, none if it is absent: not to be changed. ConfigError names file, line,
    column and value of what is not a row of runs."""
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return _read(path, stat.st_mtime_ns, stat.st_size, stat.st_ino)


def write(path: Path, columns: list[str], rows: Iterable[Row]) -> None:
    """Writes the file whole or not at all; a column that a row lacks is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace(path, file.getvalue().encode())
    _read.cache_clear()


def identity(r: Row) -> tuple[str, ...]:
    """The run, its corpus and the digest of its scheme."""
    return (r["run_id"], *(r.get(name, "") for name in DIGESTS))


def identities(rows: Iterable[Row]) -> set[tuple[str, ...]]:
    """Identities of the rows, also as older rows have them, without a digest of the scheme."""
    found = {identity(r) for r in rows}
    return found | {(*run_and_corpus, "") for *run_and_corpus, _ in found}


@lru_cache(maxsize=32)
def _read(path: Path, changed: int, size: int, inode: int) -> tuple[Row, ...]:
    """The arguments after `path` distinguish a new content from one that was read before."""
    try:
        lines = csv.reader(
            io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=""), strict=True
        )
        names = [RENAMED.get(name, name) for name in next(lines, [])]
        _check_names(path, names)
        rows = [_row(path, lines.line_num, names, cells) for cells in lines if cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not readable as CSV: {error}; restore the file") from None
    seen: set[tuple[str, ...]] = set()
    for line, r in rows:
        key = (r["run_id"], *(r.get(name, "") for name in DIGESTS))
        if key in seen:
            raise ConfigError(f"{path}: line {line}: run {key[0]} stands twice; restore the file")
        seen.add(key)
    return tuple(r for _, r in rows)


def _check_names(path: Path, names: list[str]) -> None:
    if not set(names) >= REQUIRED:
        raise ConfigError(f"{path}: line 1: not the columns of runs; restore the file")
    for name in names:
        if names.count(name) > 1 and not WITHOUT_NAME.fullmatch(name):
            raise ConfigError(f"{path}: line 1: column {name!r} stands twice; restore the file")


def _row(path: Path, line: int, names: list[str], cells: list[str]) -> tuple[int, Row]:
    where = f"{path}: line {line}"
    if len(cells) != len(names):
        raise ConfigError(f"{where}: not a whole row; restore the file")
    r = {
        name: _number(where, name, text) if text and is_number(name) else text
        for name, text in zip(names, cells, strict=True)
        if not WITHOUT_NAME.fullmatch(name) and name not in FORMER
    }
    if r["outcome"] not in OUTCOMES:
        raise ConfigError(f"{where}: outcome: unknown value {r['outcome']!r}; restore the file")
    ended = r["outcome"] != "crashed"
    hashes = {"run_id": True, "data_sha": ended, "wiring_sha": False, "commit": False}
    for name, needed in hashes.items():
        text = r.get(name, "")
        if (text or needed) and not DIGEST.fullmatch(text.removesuffix("+")):
            raise ConfigError(
                f"{where}: {name}: expected 12 hexadecimal digits, got {text!r}; restore the file"
            )
    if r["outcome"] in ("trained", "stalled") and not r.get("final_loss"):
        raise ConfigError(f"{where}: final_loss: missing; restore the file")
    return line, r


def _number(where: str, name: str, text: str) -> str:
    """The number as this harness spells it, or unchanged if that spelling has another value."""
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    infinite_or_nan = text.lower().lstrip("+-") in ("nan", "inf", "infinity")
    if not math.isfinite(value) and (not infinite_or_nan or name in COST or name in INTEGERS):
        raise ConfigError(f"{where}: {name}: expected a number, got {text!r}; restore the file")
    if name in INTEGERS:
        if value != int(value):
            raise ConfigError(
                f"{where}: {name}: expected an integer, got {text!r}; restore the file"
            )
        return text if WHOLE.fullmatch(text) else str(int(value))
    spelled = "%.6g" % value
    return spelled if float(spelled) == value else text
