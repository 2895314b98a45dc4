"""Parallel corpora from plain files: one sentence a line, the same line in each language."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.data.corpora.tables import SPLITS, Corpus, Row, cell, collected
from harness.data.files import decoded, expanded, unpacked
from harness.errors import ConfigError
from harness.fields import split_list, unquoted

SIDES = ("src", "tgt")  # where endings do not tell two languages


def aligned(name: str, given: Sequence[str], held: Mapping[str, int]) -> tuple[Corpus, str]:
    """The corpus of '[SPLIT=]FILE,FILE' texts, and in words what it was read from. Its columns are
    named by the endings of the files (train.de, train.en.gz). ConfigError if files do not have as
    many lines as their partners."""
    files: dict[str, tuple[Path, Path]] = {}
    for text in given:
        split, equals, rest = text.partition("=")
        if not equals or split not in SPLITS:
            split, rest = "train", text
        try:
            paths = [expanded(Path(unquoted(word))) for word in split_list(rest)]
        except ConfigError as error:
            raise ConfigError(f"--pairs {error}") from None
        if len({*paths}) != 2 or len(paths) != 2:
            raise ConfigError(
                f"--pairs {text}: expected two files as FILE,FILE; "
                'write a name that holds a comma in double quotes, as "a,b.de"'
            )
        if split in files:
            raise ConfigError(f"--pairs {text}: {split} is given twice; join its files")
        files[split] = paths[0], paths[1]
    columns = {split: _columns(pair) for split, pair in files.items()}
    first, *others = columns.items()
    for split, named in others:
        if named != first[1]:
            raise ConfigError(
                f"--pairs: the files of {first[0]} are in {', '.join(first[1])}, those of {split} "
                f"in {', '.join(named)}; name files in one order, with one ending per language"
            )
    rows = (row for split, pair in files.items() for row in _rows(split, pair))
    origin = ", ".join(str(path) for pair in files.values() for path in pair)
    return collected(name, first[1], rows, held, Counter()), origin


def _columns(pair: tuple[Path, Path]) -> tuple[str, ...]:
    first, second = (Path(path.name.removesuffix(".gz")).suffix[1:] for path in pair)
    told = first and second and first != second and "split" not in (first, second)
    return (first, second) if told else SIDES


def _rows(split: str, pair: tuple[Path, Path]) -> Iterator[tuple[str, Row]]:
    sides = [_lines(path) for path in pair]
    if len(sides[0]) != len(sides[1]):
        raise ConfigError(
            f"{pair[0]}: {len(sides[0])} lines, but {pair[1]}: {len(sides[1])}; "
            "a pair is the same line of both"
        )
    for row in zip(*sides, strict=True):
        yield split, tuple(map(cell, row))


def _lines(path: Path) -> list[str]:
    """Split at line feeds only, as in a table; one at the end begins no line."""
    lines = decoded(path, unpacked(path)).split("\n")
    return lines[:-1] if lines[-1] == "" else lines
