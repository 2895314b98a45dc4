"""BLEU and chrF by sacrebleu, and what a test gives without learning. No torch.

sacrebleu loads portalocker and lxml: it is imported where it is used.
"""

import itertools
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from harness.data.translation.languages import spaced, tokenizer

BATCH, BLOCK = 512, 100_000  # sentences asked for, and compared with, at a time


class Score(NamedTuple):
    """In percent, with sacrebleu's signature of BLEU."""

    bleu: float
    chrf: float
    signature: str


class HeldOut(NamedTuple):
    """The test pairs of a direction, and the BLEU of not learning anything."""

    source: str
    target: str
    group: str
    pairs: list[tuple[str, str]]
    copied: float  # the source for its own translation
    nearest: float  # the translation of the most similar training source, if there is any

    @classmethod
    def of(
        cls,
        source: str,
        target: str,
        group: str,
        pairs: list[tuple[str, str]],
        train: list[tuple[str, str]],
    ) -> "HeldOut":
        sources, references = [s for s, _ in pairs], [t for _, t in pairs]
        known = [s for s, _ in train]
        found = nearest(sources, known, spaced=spaced(source)) if train else []
        closest = [train[i][1] for i in found] or [""] * len(pairs)
        bleu = [score(said, references, target).bleu for said in (sources, closest)]
        return cls(source, target, group, pairs, *bleu)

    @property
    def direction(self) -> str:
        return f"{self.source}>{self.target}"

    def score(self, translations: Sequence[str]) -> Score:
        """BLEU and chrF of translations, one for each pair."""
        return score(translations, [reference for _, reference in self.pairs], self.target)


def score(said: Sequence[str], references: Sequence[str], language: str) -> Score:
    """Corpus BLEU and chrF of translations into a language; zero where there are none."""
    from sacrebleu.metrics import BLEU, CHRF

    bleu = BLEU(tokenize=tokenizer(language))
    if not said:
        return Score(0.0, 0.0, "")
    first = bleu.corpus_score(list(said), [list(references)])
    second = CHRF().corpus_score(list(said), [list(references)])
    return Score(first.score, second.score, str(bleu.get_signature()))


def nearest(queries: Sequence[str], among: Sequence[str], *, spaced: bool = True) -> list[int]:
    """Index of the most similar of `among` for each query: cosine of TF-IDF vectors of lower-case
    words (characters, in a language without spaces), the first of equals; 0 where none is shared.
    """
    known: dict[str, int] = {}
    there = _counts(among, known, spaced, grow=True)
    asked = _counts(queries, known, spaced, grow=False)
    documents = np.bincount(there.indices, minlength=len(known))
    rarity = sparse.diags_array(np.log((1 + len(among)) / (1 + documents)) + 1)
    there, asked = there @ rarity, asked @ rarity
    norms = np.sqrt(np.asarray(there.multiply(there).sum(axis=1)).ravel())
    there = (sparse.diags_array(1 / np.maximum(norms, 1e-12)) @ there).tocsr()
    best, found = np.full(len(queries), -1.0), np.zeros(len(queries), np.int64)
    for block, start in itertools.product(
        range(0, len(among), BLOCK), range(0, len(queries), BATCH)
    ):
        rows = slice(start, start + BATCH)
        similarity = (asked[rows] @ there[block : block + BLOCK].T).toarray()
        at, most = similarity.argmax(axis=1), similarity.max(axis=1)
        better = most > best[rows]
        found[rows] = np.where(better, block + at, found[rows])
        best[rows] = np.where(better, most, best[rows])
    return found.tolist()


def _counts(
    texts: Sequence[str], known: dict[str, int], spaced: bool, *, grow: bool
) -> sparse.csr_array:
    """Shape: texts x words."""
    columns, ends = array("i"), array("q", [0])
    for text in texts:
        for word in text.lower().split() if spaced else text.lower():
            column = known.setdefault(word, len(known)) if grow else known.get(word)
            if column is not None:
                columns.append(column)
        ends.append(len(columns))
    shape, ones = (len(texts), len(known)), np.ones(len(columns))
    found = sparse.csr_array((ones, np.asarray(columns), np.asarray(ends)), shape=shape)
    found.sum_duplicates()
    return found
