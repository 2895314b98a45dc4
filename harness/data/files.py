"""Files that a user names: found, unpacked, decoded. No torch."""

import codecs
import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from harness.errors import ConfigError

MARKS = {  # byte order marks; UTF-32's begins with one of UTF-16's
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
    codecs.BOM_UTF8: "UTF-8-sig",
}
NULS = 4  # a text with a zero in so many bytes is UTF-16 that lacks its mark


def expanded(path: Path) -> Path:
    """The path with `~` as the home folder; ConfigError if there is no such user."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: {str(error).rstrip('.')}; write the path out") from None


def shown(found: Iterable[Path], root: Path, pattern: str = "") -> list[Path]:
    """Those files below `root`, sorted, that are not hidden, nor in a hidden folder, unless the
    pattern that found them names the hidden part itself."""
    named = Path(pattern).parts
    return sorted(
        path
        for path in found
        if path.is_file() and all(p[:1] != "." or p in named for p in path.relative_to(root).parts)
    )


def unpacked(path: Path) -> bytes:
    """The bytes of a file, .gz unpacked; ConfigError if it is not whole."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read ({why}); name a whole file") from None


def decoded(path: Path, raw: bytes) -> str:
    """The text in the bytes of a file: UTF-8, or what a byte order mark says, which is no part of
    the text. ConfigError names the line and byte that cannot be read."""
    encoding = next((name for mark, name in MARKS.items() if raw.startswith(mark)), "UTF-8")
    if encoding == "UTF-8" and raw.count(0) * NULS > len(raw):
        raise ConfigError(f"{path}: looks like UTF-16 without a byte order mark; convert the file")
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding not in ("UTF-8", "UTF-8-sig"):
            where = f"byte {error.start + 1} is not {encoding}"
        else:
            read = error.object  # without the mark
            line = read.count(b"\n", 0, error.start) + 1
            byte = error.start - read.rfind(b"\n", 0, error.start)
            where = f"line {line}: byte {byte} (0x{read[error.start]:02x}) is not UTF-8"
        raise ConfigError(f"{path}: {where}; convert the file") from None
