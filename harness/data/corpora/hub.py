"""Parallel corpora from the Hugging Face hub, or from csv, json and parquet files.

The only place where the `datasets` library (extra `hub`) is imported, and only when it is called.
"""

import csv
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.data.corpora.tables import NOTHING, SPLITS, Corpus, Row, cell, collected
from harness.data.files import expanded, shown
from harness.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset

SECONDS = 5.0  # to wait for the hub's first answer
BATCH = 10_000  # rows turned into text at a time
READERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


class Source(NamedTuple):
    """Where a corpus comes from: the table that makes its file."""

    dataset: str  # a name on the hub, or a path
    columns: dict[str, str]  # our column: theirs; dots lead into nested ones
    splits: dict[str, str]  # ours: theirs, a part of theirs (train[:90%]), or files of the dataset
    config: str | None = None
    revision: str | None = None


THEIRS = {"train": "train", "valid": "validation", "test": "test"}
NESTED = {"de": "translation.de", "en": "translation.en"}
PRESETS = {
    "multi30k": Source(
        *("bentrevett/multi30k", {"de": "de", "en": "en"}, THEIRS),
        revision="4589883f3d09d4ef6361784e03f0ead219836469",
    ),
    # Its own branch is a program, which datasets 4 and later do not run: this revision is of the
    # branch refs/convert/parquet. 171,721 pairs of raw text, from which fairseq keeps 160,239.
    "iwslt14": Source(
        *("bbaaaa/iwslt14-de-en", NESTED),
        {ours: f"de-en/{theirs}/0000.parquet" for ours, theirs in THEIRS.items()},
        revision="5d811de19f17af7e20474f9017d946d34c8d9112",
    ),
    "wmt17": Source(
        *("wmt/wmt17", NESTED, THEIRS, "de-en"),
        revision="54d3aacfb5429020b9b85b170a677e4bc92f2449",
    ),
}
OPUS100 = re.compile(r"opus100-([a-z]{2,3})-([a-z]{2,3})")


def preset(name: str) -> Source | None:
    """The settings of a corpus that is known by name; opus100 is one corpus a pair of languages."""
    if (pair := OPUS100.fullmatch(name)) and pair[1] != pair[2]:
        columns = {language: f"translation.{language}" for language in pair.groups()}
        config = "-".join(sorted(columns))
        revision = "805090dc28bf78897da9641cdf08b61287580df9"
        return Source("Helsinki-NLP/opus-100", columns, THEIRS, config, revision)
    return PRESETS.get(name)


def parsed(option: str, text: str) -> dict[str, str]:
    """{'de': 'translation.de', ...} of 'de=translation.de,...', as an option gives it."""
    pairs = [part.partition("=") for part in text.split(",")]
    names = {name.strip(): value.strip() for name, _, value in pairs}
    if len(names) < len(pairs) or not all(names) or not all(names.values()):
        raise ConfigError(
            f"{option}: expected NAME=THEIRS[,NAME=THEIRS] without repeats, got '{text}'"
        )
    return names


def fetch(name: str, source: Source, held: Mapping[str, int] = NOTHING) -> tuple[Corpus, str]:
    """The corpus, and in words what it was read from. ConfigError without `datasets`, without the
    internet, or where dataset, config, revision, split or column do not exist."""
    for split in source.splits:
        if split not in SPLITS:
            raise ConfigError(f"--splits: unknown split '{split}'{did_you_mean(split, SPLITS)}")
    try:
        import datasets.packaged_modules
    except ImportError:
        raise ConfigError(
            f"{name}: needs the datasets library; install it with: pip install '.[hub]'"
        ) from None
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    local = expanded(Path(source.dataset)).absolute()  # a bare name may be the library's
    if (
        not local.exists()
        and source.dataset in datasets.packaged_modules._PACKAGED_DATASETS_MODULES
    ):
        raise ConfigError(
            f"{name}: '{source.dataset}' is a kind of files, not a dataset; "
            "name OWNER/DATASET or a path"
        )
    if local.exists() and {*"*?["} & {*str(local)}:
        raise ConfigError(
            f"{name}: '{local}': the datasets library reads *, ? and [ as patterns; rename the path"
        )
    if not local.exists() and (local.suffix in READERS or source.dataset[0] in "./~"):
        raise ConfigError(f"{name}: no file or folder '{source.dataset}'; name a dataset or a path")
    with tempfile.TemporaryDirectory() as cache:  # what was read from local files is not kept
        try:
            if local.exists():
                origin = source.dataset
                rows = _rows(name, source, local, {"cache_dir": cache})
            else:
                revision = _resolved(source)
                origin = f"{source.dataset}, revision {revision}"
                rows = _rows(name, source, None, {"revision": revision})
            corpus = collected(name, tuple(source.columns), rows, held, Counter())
        except ConfigError:
            raise
        except Exception as error:
            line = _line(name, source, error)
            if line is None:
                raise
            raise ConfigError(line) from None
    return corpus, origin


def _resolved(source: Source) -> str:
    """The commit that a revision names now. Asked first: a library that cannot reach the hub would
    try again and again."""
    from huggingface_hub import HfApi

    found = HfApi().dataset_info(source.dataset, revision=source.revision, timeout=SECONDS)
    return str(found.sha)


def _rows(
    name: str, source: Source, local: Path | None, options: dict[str, Any]
) -> Iterator[tuple[str, Row]]:
    for split, theirs in source.splits.items():
        table = _table(source, local, theirs, options).flatten()
        for column in source.columns.values():
            kind = getattr(table.features.get(column), "dtype", "no text")
            if column not in table.column_names:
                hint = did_you_mean(column, table.column_names)
                raise ConfigError(f"{name}: no column '{column}' in split '{theirs}'{hint}")
            if kind not in ("string", "large_string", "null"):
                raise ConfigError(
                    f"{name}: column '{column}' holds {kind}, not text; choose with --columns"
                )
        wanted = list(source.columns.values())
        for batch in table.select_columns(wanted).iter(BATCH):
            for row in zip(*(batch[column] for column in wanted), strict=True):
                yield split, tuple(cell(text or "") for text in row)


def _table(source: Source, local: Path | None, theirs: str, options: dict[str, Any]) -> "Dataset":
    from datasets import load_dataset

    place = local or f"hf://datasets/{source.dataset}@{options['revision']}"
    if local is not None and local.is_file():
        files, split = str(local), theirs
    elif Path(theirs).suffix in READERS:
        files, split = f"{place}/{theirs}", "train"
    else:
        files_there = shown(local.rglob("*"), local) if local else []
        form = _form({path.suffix for path in files_there} & {*READERS})
        dataset = str(local or source.dataset)
        return load_dataset(dataset, source.config, split=theirs, **options, **form)
    suffix = Path(files).suffix
    if suffix not in READERS:
        raise ValueError(f"a file of kind '{suffix}' (known: {', '.join(READERS)})")
    form, cache = _form({suffix}), options.get("cache_dir")
    try:
        return load_dataset(READERS[suffix], data_files=files, split=split, cache_dir=cache, **form)
    except StopIteration:  # what the library says to a pattern that nothing fits, or to nothing
        raise FileNotFoundError(
            "no rows" if files == str(local) else f"no file '{theirs}'"
        ) from None


def _form(kinds: set[str]) -> dict[str, Any]:
    """How pandas is to read files of these kinds: NA, null and None are words like any others, and
    quotes are characters where tabs part cells."""
    if kinds == {".tsv"}:
        return {"sep": "\t", "quoting": csv.QUOTE_NONE, "keep_default_na": False}
    return {"keep_default_na": False} if kinds == {".csv"} else {}


def _line(name: str, source: Source, error: Exception) -> str | None:
    """What the libraries mean, in one line; None for what is none of the user's doing."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "UnicodeDecodeError" in kinds | {type(error.__cause__).__name__}:
        return f"{name}: {source.dataset}: holds text that is not UTF-8; convert its files"
    if kinds & {"TransportError", "ConnectionError"}:  # also where the library was told: offline
        return (
            f"{name}: needs the internet (the Hugging Face hub could not be reached); "
            "build it where there is a connection and copy the file, or name local files with --hub"
        )
    if kinds & {"HTTPError", "DatasetsError", "ValueError", "RuntimeError", "FileNotFoundError"}:
        told = [str(each).strip() for each in (error.__cause__, error) if each]
        said = next(filter(None, told), type(error).__name__).split("\n")[0].rstrip(".")
        return (
            f"{name}: {source.dataset}: {said}; check dataset, --config, --revision, --columns "
            "and --splits"
        )
    return None
