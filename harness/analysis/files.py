"""Files of results: written whole or not at all, and the thinned curves of a study. No torch."""

import csv
import gzip
import io
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from harness.errors import ConfigError
from harness.training.curves import Curves

LARGEST_BYTES = 2**20  # of a study's curves
SPACINGS = (100, 50, 25, 10, 0)  # steps kept after the first 51: the widest that fits

CurveRows = dict[str, list[tuple[str, str, str, str]]]  # by run_id: step, series, block, value


def replace(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, and never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_bytes() == content:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class CurvesFile:
    """curves.csv.gz: thinned series by run, with the same bytes for the same curves."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> set[str]:
        return set(self._read())

    def frame(self) -> pd.DataFrame:
        """Columns run_id, step, series, block, value; block is empty in series without blocks."""
        text = _text(self._read())
        return pd.read_csv(io.StringIO(text), dtype={"run_id": str, "series": str})

    def write(self, curves: Mapping[str, Curves], order: Sequence[str]) -> None:
        """Adds runs to those at hand, those of `order` first; steps are spaced so that they fit."""
        at_hand = self._read()
        for spaced in SPACINGS:
            rows = at_hand | {key: _thinned(each, spaced) for key, each in curves.items()}
            ordered = [key for key in order if key in rows]
            ordered += sorted(rows.keys() - set(ordered))
            content = gzip.compress(_text({key: rows[key] for key in ordered}).encode(), mtime=0)
            if len(content) < LARGEST_BYTES:
                break
        replace(self.path, content)

    def _read(self) -> CurveRows:
        curves: CurveRows = {}
        if not self.path.exists():
            return curves
        try:
            with gzip.open(self.path, "rt", encoding="utf-8", newline="") as file:
                for run, step, series, block, value in list(csv.reader(file))[1:]:
                    curves.setdefault(run, []).append((step, series, block, value))
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise ConfigError(f"{self.path}: not readable: {error}; restore or remove it") from None
        return curves


def _thinned(curves: Curves, spaced: int) -> list[tuple[str, str, str, str]]:
    return [
        (str(step), series, "" if block is None else str(block), "%.4g" % value)
        for step, series, block, value in curves.thinned(spaced)
    ]


def _text(curves: CurveRows) -> str:
    lines = ["run_id,step,series,block,value"]
    lines += [",".join((run, *values)) for run, rows in curves.items() for values in rows]
    return "\n".join(lines) + "\n"
