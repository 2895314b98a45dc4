"""BLEU and chrF by sacrebleu, and what a test gives without learning. No torch.

sacrebleu loads portalocker and lxml: it is imported where it is used.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

UNSPACED = {"zh": "zh", "ja": "char", "ko": "char"}  # sacrebleu's tokenizers; all others: 13a
BATCH = 512  # test sentences compared at a time


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
    nearest: float  # the translation of the most similar training source

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
        closest = [train[i][1] for i in nearest(sources, [s for s, _ in train])]
        copied, found = (score(x, references, target).bleu for x in (sources, closest))
        return cls(source, target, group, pairs, copied, found)


def score(said: Sequence[str], references: Sequence[str], language: str) -> Score:
    """Corpus BLEU and chrF of translations into a language; zero where there are none."""
    from sacrebleu.metrics import BLEU, CHRF

    bleu = BLEU(tokenize=UNSPACED.get(language.split("-")[0].lower(), "13a"))
    if not said:
        return Score(0.0, 0.0, "")
    first = bleu.corpus_score(list(said), [list(references)])
    second = CHRF().corpus_score(list(said), [list(references)])
    return Score(first.score, second.score, str(bleu.get_signature()))


def nearest(queries: Sequence[str], among: Sequence[str]) -> list[int]:
    """Index of the most similar of `among` for each query: cosine of TF-IDF vectors of lower-case
    words, the first of equals; 0 where no word is shared."""
    known: dict[str, int] = {}
    there = _counts(among, known, grow=True)
    asked = _counts(queries, known, grow=False)
    documents = np.bincount(there.indices, minlength=len(known))
    rarity = sparse.diags_array(np.log((1 + len(among)) / (1 + documents)) + 1)
    there, asked = there @ rarity, asked @ rarity
    norms = np.sqrt(np.asarray(there.multiply(there).sum(axis=1)).ravel())
    there = sparse.diags_array(1 / np.maximum(norms, 1e-12)) @ there
    found: list[int] = []
    for start in range(0, len(queries), BATCH):
        similarity = (asked[start : start + BATCH] @ there.T).toarray()
        found += similarity.argmax(axis=1).tolist()
    return found


def _counts(texts: Sequence[str], known: dict[str, int], *, grow: bool) -> sparse.csr_array:
    """Shape: texts x words."""
    rows, columns = [], []
    for row, text in enumerate(texts):
        for word in text.lower().split():
            column = known.setdefault(word, len(known)) if grow else known.get(word)
            if column is not None:
                rows.append(row)
                columns.append(column)
    shape = len(texts), len(known)
    ones = np.ones(len(rows))
    return sparse.coo_array((ones, (rows, columns)), shape=shape).tocsr()
