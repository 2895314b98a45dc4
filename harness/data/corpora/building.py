"""What a corpus is built from, by its name and the options of `harness data build`."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.data.corpora import help as help_corpora
from harness.data.corpora import hub, listing
from harness.data.corpora.holding import HELD
from harness.data.corpora.sentences import aligned
from harness.data.corpora.tables import Corpus
from harness.data.corpora.tmx import memory
from harness.errors import ConfigError, did_you_mean

Builder = Callable[[], tuple[Corpus, str]]  # the corpus, and in words what it was read from
HELP = {
    "help-de-en": help_corpora.german_english,
    "help-multi": help_corpora.multilingual,
}


class Wanted(NamedTuple):
    """The options of `harness data build`; None or empty where they are not given."""

    name: str
    folder: Path | None  # --from
    dataset: str | None  # --hub
    config: str | None
    revision: str | None
    columns: str | None
    splits: str | None
    pairs: Sequence[str]
    tmx: Path | None
    hold_out: str | None


def builder(wanted: Wanted) -> Builder:
    """Builds the corpus when it is called. ConfigError, before any work, for a name or options
    that do not go together."""
    name, folder = wanted.name, wanted.folder
    own = {
        "--hub": wanted.dataset is not None,
        "--pairs": bool(wanted.pairs),
        "--tmx": wanted.tmx is not None,
    }
    given = [option for option, is_given in own.items() if is_given]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)}: a corpus has one source; keep one of them")
    if not given:
        return _known(wanted)
    _require_own(name, given[0])
    if folder is not None:
        raise ConfigError(f"{name}: --from is for LibreOffice's help; leave it out")
    if (wanted.config or wanted.revision or wanted.splits) and not own["--hub"]:
        raise ConfigError(f"--config, --revision and --splits: are for --hub, not for {given[0]}")
    columns, held = _columns(wanted), _sizes(wanted.hold_out)
    if wanted.pairs:
        if columns is not None:
            raise ConfigError("--columns: the endings of the files name them; rename the files")
        return lambda: aligned(name, wanted.pairs, held)
    if path := wanted.tmx:
        return lambda: memory(name, path, columns, held)
    if not wanted.dataset or columns is None:
        raise ConfigError(f"{name}: --hub needs a dataset and --columns, as de=translation.de,...")
    theirs = {ours: name for ours, name in hub.THEIRS.items() if ours not in held}
    theirs = hub.parsed("--splits", wanted.splits) if wanted.splits else theirs
    source = hub.Source(wanted.dataset, columns, theirs, wanted.config, wanted.revision)
    return lambda: hub.fetch(name, source, held)


def _known(wanted: Wanted) -> Builder:
    name, folder = wanted.name, wanted.folder
    if wanted.config or wanted.revision or wanted.columns or wanted.splits:
        raise ConfigError(
            "--config, --revision, --columns and --splits: of which dataset? add --hub"
        )
    if wanted.hold_out:
        raise ConfigError("--hold-out: of which pairs? add --hub, --pairs or --tmx")
    if name in HELP:
        where = folder or Path("/")
        return lambda: (HELP[name](where), f"LibreOffice's help in {where}")
    source = hub.preset(name)
    if source is None:
        hint = did_you_mean(name, listing.KNOWN)
        raise ConfigError(
            f"unknown corpus '{name}'{hint}; for one of your own add --hub, --pairs or --tmx"
        )
    if folder is not None:
        raise ConfigError(f"{name}: --from is for LibreOffice's help; leave it out")
    return lambda: hub.fetch(name, source)


def _require_own(name: str, option: str) -> None:
    taken = {*listing.KNOWN, *(known.file for known in listing.KNOWN.values())}
    if name in taken or hub.preset(name):
        raise ConfigError(f"{name}: is the name of another corpus; choose your own for {option}")
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise ConfigError(f"'{name}': not a name for a file; use letters, digits, '-' and '_'")


def _columns(wanted: Wanted) -> dict[str, str] | None:
    if wanted.columns is None:
        return None
    columns = hub.parsed("--columns", wanted.columns)
    if len(columns) < 2 or "split" in columns:
        raise ConfigError("--columns: two or more are needed, none of them named 'split'")
    return columns


def _sizes(text: str | None) -> Mapping[str, int]:
    """Pairs to hold out by split, from 'test=1000,valid=1000'."""
    sizes: dict[str, int] = {}
    for part in text.split(",") if text is not None else ():
        split, _, count = (each.strip() for each in part.partition("="))
        if split not in HELD or split in sizes or not count.isdecimal() or not int(count):
            raise ConfigError(
                f"--hold-out {text}: expected test=N,valid=N or one of them; N is a whole number "
                "from 1 on, without separators"
            )
        sizes[split] = int(count)
    return sizes
