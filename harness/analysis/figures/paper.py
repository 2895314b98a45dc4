"""The paper's own numbers, results/paper/ of the repository: read, never mixed with ours."""

from pathlib import Path

import pandas as pd

from harness.errors import ConfigError
from harness.sweep.study import ROOT

FOLDER = ROOT / "results" / "paper"
COLUMNS = (
    *("scheme", "label", "encoder_layers", "decoder_layers"),
    *("bleu", "status", "source", "confidence", "notes"),
)


def published(name: str, folder: Path = FOLDER) -> pd.DataFrame:
    """BLEU by scheme and depth of a figure or table of arXiv:2203.00555: `scheme` is our name or
    empty, `label` the paper's, `bleu` NaN where it diverged. ConfigError where the file is not
    there or not whole."""
    path = folder / f"{name}.csv"
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; restore it, or install the harness again")
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    except ValueError as error:  # pandas' own are of this kind, too
        raise ConfigError(f"{path}: not readable as CSV: {error}; restore the file") from None
    if tuple(rows) != COLUMNS:
        raise ConfigError(f"{path}: line 1: expected {','.join(COLUMNS)}; restore the file")
    for column in ("encoder_layers", "decoder_layers", "bleu"):
        rows[column] = pd.to_numeric(rows[column], errors="coerce")
    layers = rows[["encoder_layers", "decoder_layers"]].notna().all(axis=1)
    status = rows["bleu"].notna().map({True: "ok", False: "diverged"})
    broken = (~layers | (rows["status"] != status)).to_numpy()
    if broken.any():
        where = f"{path}: line {broken.argmax() + 2}"
        raise ConfigError(f"{where}: not two depths, and BLEU or 'diverged'; restore the file")
    return rows
