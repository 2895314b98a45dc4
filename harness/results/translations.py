"""translations.tsv: some translations of the first run of each point, with notices of licences.

No torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.data.corpora.listing import named, notice
from harness.data.translation.options import Translation
from harness.data.translation.translations import HEADER, Translated
from harness.errors import ConfigError
from harness.results.columns import Row
from harness.results.files import replace
from harness.sweep.plan import Cell, Plan

FILE = "translations.tsv"
PAIRS = 50  # most pairs of a run
FEWER = (25, 12, 6, 3, 1)  # pairs of each run in a study whose file would be too large
LARGEST_BYTES = 2**20
COLUMNS = ("run_id", "corpus", *HEADER)


class Kept(NamedTuple):
    """The first translations of a run, taking directions in turn."""

    corpus: str
    pairs: Sequence[Translated]


class TranslationsFile:
    """translations.tsv: runs in the order of their plan, the same bytes for the same runs.

    Lines that begin with '#' are the notices of the corpora that the file has texts of.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> dict[str, Kept]:
        """Translations by run_id. ConfigError for a file that is not whole."""
        if not self.path.exists():
            return {}
        try:
            lines = self.path.read_bytes().decode().split("\n")
            header, *cells = (line.split("\t") for line in lines if not line.startswith("#"))
            if (*header,) != COLUMNS or cells.pop() != [""] or {*map(len, cells)} - {len(header)}:
                raise ValueError(f"expected whole lines of {len(COLUMNS)} cells")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.path}: not readable: {error}; restore or remove it") from None
        found: dict[str, tuple[str, list[Translated]]] = {}
        for run, corpus, *texts in cells:
            found.setdefault(run, (corpus, []))[1].append(Translated(*texts))
        return {run: Kept(*each) for run, each in found.items()}

    def drop(self, runs: Iterable[str]) -> None:
        """Removes the translations of runs that are no longer the ones measured."""
        gone = set(runs)
        if gone and gone & (at_hand := self.rows()).keys():
            self._replace({run: kept for run, kept in at_hand.items() if run not in gone})

    def write(self, translations: Mapping[str, Kept], plan: Plan) -> None:
        """Adds runs to those at hand, in the plan's order, and removes runs of the plan that are
        not, or no longer, the first of their points. Runs of other plans stay, at the end."""
        rows = {**self.rows(), **translations}
        first = [cell.key for cell in plan.first_seeds if cell.key in rows]
        others = sorted(rows.keys() - plan.by_key.keys())
        if rows:
            self._replace({run: rows[run] for run in (*first, *others)})

    def _replace(self, rows: Mapping[str, Kept]) -> None:
        for most in (PAIRS, *FEWER):
            content = _content(rows, most)
            if len(content) < LARGEST_BYTES:
                break
        replace(self.path, content)


def kept(cell: Cell, translations: Sequence[Translated]) -> Kept:
    """What the file keeps of a run's translations."""
    assert isinstance(cell.config.data, Translation)
    turns: dict[str, int] = {}
    ranks = []
    for t in translations:
        turns[t.direction] = turns.get(t.direction, -1) + 1
        ranks.append(turns[t.direction])
    order = sorted(range(len(ranks)), key=ranks.__getitem__)  # stable: directions in their order
    return Kept(
        named(Path(cell.config.data.corpus)), [translations[i].plain() for i in order[:PAIRS]]
    )


def translated(plan: Plan, rows: Mapping[str, Row]) -> dict[str, Cell]:
    """The plan's cells by run_id whose runs have translated a test split and are the first of
    their points."""
    return {cell.key: cell for cell in plan.first_seeds if scored(rows.get(cell.key, {}))}


def scored(r: Row) -> bool:
    """True if the run of a row has translated a test split."""
    return bool(r.get("metric_bleu"))


def _content(rows: Mapping[str, Kept], most: int) -> bytes:
    corpora = dict.fromkeys(each.corpus for each in rows.values())
    lines = [f"# {notice(corpus)}" for corpus in corpora] + ["\t".join(COLUMNS)]
    lines += [
        "\t".join((run, corpus, *pair))
        for run, (corpus, pairs) in rows.items()
        for pair in pairs[:most]
    ]
    return "".join(f"{line}\n" for line in lines).encode()
