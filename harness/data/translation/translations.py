"""A run's translations of its test pairs, and the file that holds them: tab-separated, as corpora
are. No torch."""

from collections.abc import Iterable
from typing import NamedTuple

from harness.data.corpora.tables import BREAKS

HEADER = ("direction", "source", "reference", "hypothesis")


class Translated(NamedTuple):
    """A test pair of a direction 'source>target', and a model's translation as it is scored."""

    direction: str
    source: str
    reference: str
    hypothesis: str

    def plain(self) -> "Translated":
        """With a space for each run of tabs and line ends: no score distinguishes them."""
        return Translated(*(BREAKS.sub(" ", text).strip() for text in self))


def dumps(translations: Iterable[Translated]) -> str:
    rows = [HEADER, *(each.plain() for each in translations)]
    return "".join("\t".join(row) + "\n" for row in rows)


def loads(text: str) -> list[Translated]:
    """Raises ValueError for any other text than that of `dumps`."""
    header, *lines = text.split("\n")  # cells may hold other ends of lines
    if header != "\t".join(HEADER) or lines[-1:] != [""]:
        raise ValueError("not a whole file of translations")
    return [Translated(*_cells(line)) for line in lines[:-1]]


def _cells(line: str) -> list[str]:
    cells = line.split("\t")
    if len(cells) != len(HEADER):
        raise ValueError(f"expected {len(HEADER)} cells, got {len(cells)}")
    return cells
