"""curves.csv.gz: the thinned curves of a study's runs. No torch."""

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from harness.errors import ConfigError
from harness.results.files import replace
from harness.training.curves import BLOCKS, EVERY_STEP, Curves

LARGEST_BYTES = 2**20  # of a study's curves
SPACED = 100  # steps kept after the first 51
# Series with a value at few steps of a run: these steps are never thinned.
FEW = (
    *("loss/valid", "source_gain", "activation_rms/", "token_share/", "attention_entropy/"),
    *("skip_cost", "coefficient/encoder/dense.", "coefficient/decoder/dense."),
)
# How a study too large is thinned: only each 2^i-th step of block series, then of the others too,
# then only each 2^i-th of the blocks.
THINNINGS = [(i, 0, 0) for i in range(8)] + [(7, i, 0) for i in range(1, 8)]
THINNINGS += [(7, 7, i) for i in range(1, 5)]

CurveRows = dict[str, list[tuple[str, str, str, str]]]  # by run_id: step, series, block, value


class CurvesFile:
    """curves.csv.gz: thinned series by run, with the same bytes for the same curves."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> set[str]:
        return set(self.rows())

    def frame(self) -> pd.DataFrame:
        """Columns run_id, step, series, block, value; block is empty in series without blocks."""
        text = _text(self.rows())
        return pd.read_csv(io.StringIO(text), dtype={"run_id": str, "series": str})

    def drop(self, runs: Iterable[str]) -> None:
        """Forgets the curves of runs that are no longer the ones measured."""
        gone = set(runs)
        if gone and gone & (at_hand := self.rows()).keys():
            self._replace({run: rows for run, rows in at_hand.items() if run not in gone})

    def write(self, curves: Mapping[str, Curves], order: Sequence[str]) -> None:
        """Adds runs to those at hand, those of `order` first. All are thinned alike, as little as
        fits: what is on file does not depend on how many times it was written."""
        self.add({key: _rows(each) for key, each in curves.items()}, order)

    def add(self, curves: CurveRows, order: Sequence[str]) -> None:
        """As `write`, for curves as another file has them."""
        rows = self.rows() | curves
        known = [key for key in order if key in rows]
        self._replace({key: rows[key] for key in (*known, *sorted(rows.keys() - set(known)))})

    def _replace(self, curves: CurveRows) -> None:
        kept = -1
        for steps, scalars, blocks in THINNINGS:
            thinned = {
                run: _with_blocks(_thinned(rows, steps, scalars), blocks)
                for run, rows in curves.items()
            }
            before, kept = kept, sum(map(len, thinned.values()))
            if kept == before:
                continue  # nothing to thin in this way
            content = gzip.compress(_text(thinned).encode(), mtime=0)
            if len(content) < LARGEST_BYTES:
                break
        replace(self.path, content)

    def rows(self) -> CurveRows:
        """Every run's curves, as text."""
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


def _rows(curves: Curves) -> list[tuple[str, str, str, str]]:
    return [
        (str(step), series, "" if block is None else str(block), "%.4g" % value)
        for step, series, block, value in curves.thinned(SPACED)
    ]


def _thinned(
    rows: list[tuple[str, str, str, str]], blocks: int, scalars: int
) -> list[tuple[str, str, str, str]]:
    """Each 2^blocks-th or 2^scalars-th step, and the last, by its place among the run's steps of
    training: thinning twice is thinning once. Series of few steps (validation) stay whole."""
    steps = [int(step) for step, series, _, _ in rows if series == EVERY_STEP]
    stride = steps[1] - steps[0] if len(steps) > 1 else 1  # more than 1 where it was thinned before
    left_out = [
        {str(step) for i, step in enumerate(steps[:-1]) if i * stride % 2**level}
        for level in (scalars, blocks)
    ]
    return [r for r in rows if r[0] not in left_out[r[2] != ""] or r[1].startswith(FEW)]


def _with_blocks(
    rows: list[tuple[str, str, str, str]], level: int
) -> list[tuple[str, str, str, str]]:
    """First, last and each 2^level-th block, by its place from first to last: thinning twice is
    thinning once."""
    if not level:
        return rows
    last: dict[str, int] = {}
    for _, series, block, _ in rows:
        last[series] = max(last.get(series, 1), int(block or 1))
    spaces = BLOCKS - 1
    return [
        r
        for r in rows
        if not r[2]
        or int(r[2]) == last[r[1]]
        or round((int(r[2]) - 1) / (last[r[1]] - 1) * spaces) % 2**level == 0
    ]


def _text(curves: CurveRows) -> str:
    lines = ["run_id,step,series,block,value"]
    lines += [",".join((run, *values)) for run, rows in curves.items() for values in rows]
    return "\n".join(lines) + "\n"
