"""The corpora that are known by name, and those in a folder of data: file, licence, builder."""

import os
import shlex
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.data.corpora.hub import preset
from harness.data.corpora.tables import ENDINGS, SPLITS, Corpus, read
from harness.data.files import expanded
from harness.errors import ConfigError, did_you_mean

UNKNOWN_LICENCE = "see the source"
HELP_VERSION = "4:7.4.7-1+deb12u14"  # of the packages that SHA is of
PERCENTILES = (5, 50, 95, 100)
NOTICES = {  # what a licence asks to be said with the texts
    "MPL-2.0": "written and translated by the LibreOffice contributors; Mozilla Public License "
    "2.0, https://mozilla.org/MPL/2.0/",
}
LOST = {"Cc", "Cn", "Co", "Cs"}  # control characters, and those that mean nothing


class Known(NamedTuple):
    """A corpus that `harness data build NAME` makes."""

    file: str  # its name without ending
    licence: str
    builds: str  # what is read
    sha: str = ""  # SHA-256 of the unpacked file, where it is to be always the same


KNOWN = {
    "help-de-en": Known(
        "deu-eng",
        "MPL-2.0",
        "LibreOffice help: de, en",
        "f5985e74110e69caf2540c410a74affb58f2273d5c3691d65a447c91e3e9838e",
    ),
    "help-multi": Known(
        "help-multi",
        "MPL-2.0",
        "LibreOffice help: 18 languages",
        "1ed9f6155792c6e5d5b53908b43cc4dfd4471bc70b09365bd14b00bfe786096d",
    ),
    "multi30k": Known("multi30k", UNKNOWN_LICENCE, "hub: bentrevett/multi30k"),
    "iwslt14": Known("iwslt14", "CC-BY-NC-ND-4.0", "hub: bbaaaa/iwslt14-de-en"),
    "wmt17": Known("wmt17", UNKNOWN_LICENCE, "hub: wmt/wmt17, de-en"),
    "opus100-de-en": Known(
        "opus100-de-en", UNKNOWN_LICENCE, "hub: Helsinki-NLP/opus-100, any pair with en"
    ),
}


def place(name: str, data: Path) -> Path:
    """Where a corpus is, packed or not, or would be. ConfigError where it is there twice."""
    stem = KNOWN[name].file if name in KNOWN else name
    paths = [data / f"{stem}{ending}" for ending in ENDINGS]
    found = [path for path in paths if os.path.lexists(path)]  # also a link to nothing
    if len(found) > 1:
        raise ConfigError(f"{found[0]}: {found[1].name} is there too; remove one of them")
    return found[0] if found else paths[-1]


def locate(name: str, data: Path) -> Path:
    """The file of a corpus by name, or by a path from the folder of data or from here; ConfigError
    names the command that builds it."""
    path = expanded(Path(name))
    if name.endswith(ENDINGS) or len(path.parts) > 1:
        return data / path if (data / path).is_file() else path
    path = place(name, data)
    if not os.path.lexists(path):
        there = {*KNOWN, *(_stem(each) for each in _files(data))}
        if name not in KNOWN and preset(name) is None:
            raise ConfigError(f"{data}: no corpus '{name}'{did_you_mean(name, there)}")
        usual = Path(os.environ.get("HARNESS_DATA", "data"))
        folder = "" if data == usual else f" --data {shlex.quote(str(data))}"
        remedy = f"make it with 'harness data build {name}{folder}'"
        raise ConfigError(f"{path}: not there yet; {remedy}")
    return path


def rows(data: Path) -> list[dict[str, Any]]:
    """One row a corpus, known or in the folder; `error` says in one line what is wrong with it."""
    files = {known.file for known in KNOWN.values()}
    others = sorted({_stem(path) for path in _files(data)} - files)
    return [_row(name, data) for name in (*KNOWN, *others)]


def known_sha(name: str) -> str:
    """SHA-256 that a corpus is to have, empty where any will do."""
    return KNOWN[name].sha if name in KNOWN else ""


def named(path: Path) -> str:
    """The name of the corpus in a file."""
    stem = _stem(path)
    return next((name for name, known in KNOWN.items() if known.file == stem), stem)


def notice(name: str) -> str:
    """Where the texts of a corpus come from and what their licence is, in one line."""
    known = KNOWN.get(name)
    if known is None:
        return f"texts of corpus {name}, whose own licence holds"
    licence = NOTICES.get(known.licence, f"licence: {known.licence}")
    return f"texts of corpus {name}, made from {known.builds}; {licence}"


def lengths(corpus: Corpus) -> dict[str, list[int]]:
    """By column: percentiles of words in a text, and how many texts there are."""
    found = {}
    for i, column in enumerate(corpus.columns):
        texts = [row[i] for split in SPLITS for row in corpus.splits[split] if row[i]]
        words = [len(text.split()) for text in texts] or [0]
        found[column] = [*map(int, np.percentile(words, PERCENTILES)), len(texts)]
    return found


def lost_share(corpus: Corpus) -> float:
    """The share of characters that stand for none: U+FFFD, controls, private and unassigned."""
    counted: Counter[str] = Counter()
    for split in SPLITS:
        for row in corpus.splits[split]:
            for text in row:
                counted.update(text)
    lost = [c for c in counted if c == "\ufffd" or unicodedata.category(c) in LOST]
    return sum(counted[c] for c in lost) / counted.total()


def pairs(corpus: Corpus) -> dict[str, int]:
    """Pairs by split; a row of more than two languages pairs one of them with each other."""
    return {
        split: sum(len(row) - row.count("") - 1 for row in rows)
        for split, rows in corpus.splits.items()
    }


def _row(name: str, data: Path) -> dict[str, Any]:
    known = KNOWN.get(name, Known(name, UNKNOWN_LICENCE, ""))
    row: dict[str, Any] = {"name": name, "present": False, "where": ""}
    row |= {**dict.fromkeys(SPLITS), "licence": known.licence, "builds": known.builds, "error": ""}
    try:
        path = place(name, data)
        if os.path.lexists(path):
            row |= {"present": True, "where": str(path)}
            row |= pairs(read(path))
    except ConfigError as error:
        row["error"] = str(error)
    return row


def _files(data: Path) -> list[Path]:
    found = [path for ending in ENDINGS for path in data.glob(f"*{ending}")]
    return [path for path in found if not path.name.startswith(".")]


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".tsv")
