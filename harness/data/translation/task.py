"""A parallel corpus as batches of a token budget, and its test split to translate. No torch.

Letters: B sequences, T targets a sequence, S source tokens a sequence.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from harness.data.arrays import BOS, EOS, PAD, Array, Arrays, Validation, generator
from harness.data.corpora.tables import Corpus, Row, alike
from harness.data.translation import tuning
from harness.data.translation.languages import guessed
from harness.data.translation.options import Translation, directions, load_corpus, low_resource
from harness.data.translation.paired import Paired, Sentences, by_length, joined
from harness.data.translation.pieces import pieces_of
from harness.data.translation.scores import HeldOut
from harness.errors import ConfigError

FREQUENCY_PAIRS = 200_000  # whose targets frequencies are counted in, at most
LONGEST_FACTOR, LONGEST_MORE = 2, 10  # a translation has at most 2 S + 10 tokens
TEST_TOKENS = 1024  # most tokens of a source to translate
DECODED_TOKENS = 8192  # most tokens of a batch of translations, were all as long as that

Text = tuple[str, str]  # source, target


class Parallel:
    """Batches and test pairs of a translation task; what filters left out is in `left_out`."""

    def __init__(
        self, options: Translation, corpus: Corpus, length: int, held_out: Validation = "valid"
    ) -> None:
        self.options, self._corpus, self._length = options, corpus, length
        self.sha = corpus.sha
        self.left_out: Counter[str] = Counter(corpus.left_out)
        self._read: dict[tuple[str, str, str], list[Text]] = {}
        self.directions = directions(options, corpus)
        self._low = low_resource(options, corpus)
        targets = {target for _, target in self.directions}
        self._tagged = len(targets) > 1
        texts = {direction: self._texts("train", *direction) for direction in self.directions}
        self._pieces = pieces_of(
            dict.fromkeys(side for pairs in texts.values() for pair in pairs for side in pair),
            options.pieces,
            sorted(targets) if self._tagged else (),
        )
        self.vocabularies = (self._pieces.vocabulary,) * 2
        train = {d: self._encode(d, pairs, "train") for d, pairs in texts.items()}
        valid = {d: self._encode(d, self._texts("valid", *d), "valid") for d in self.directions}
        for split, found in (("train", train), ("valid", valid)):
            if not any(len(pairs) for _, pairs in found.values()):
                raise ConfigError(
                    f"data.corpus: no pair of split '{split}' is left for train.length {length} "
                    f"and data.max_words {options.max_words}; allow longer ones"
                )
        self._train = joined([each for each, _ in train.values()])
        self._valid = {d: each for d, (each, _) in valid.items()}
        if held_out == "tuning":
            counts = {d: len(pairs) for d, (_, pairs) in valid.items()}
            held, left = tuning.held_out(corpus, {d: p for d, (_, p) in train.items()}, counts)
            self._train = joined([train[d][0].take(rows) for d, rows in left.items()])
            self._valid = {d: train[d][0].take(rows) for d, rows in held.items()}
        self._test = {direction: self._test_texts(*direction) for direction in self.directions}

    def train(self, seed: int, index: int, tokens: int) -> Arrays:
        """Every pair comes once an epoch: in batches of like lengths, which come in any order."""
        cuts = self._training_cuts(tokens)
        epoch, at = divmod(index, len(cuts) - 1)
        rows, order = self._epoch(seed, epoch, len(cuts) - 1)
        batch = order[at]
        return self._train.arrays(rows[cuts[batch] : cuts[batch + 1]])

    def valid(self, tokens: int) -> list[Arrays]:
        """Direction by direction, in batches of at least two pairs where there are two: a pair
        alone has no neighbour whose source could stand in for its own. A budget holds two pairs of
        the longest, so that only the last may be left alone."""
        batches = []
        for (source, target), pairs in self._valid.items():
            rows = by_length(pairs, np.arange(len(pairs.costs)))
            cuts = _cuts(pairs.costs, tokens)
            if len(cuts) > 2 and cuts[-1] - cuts[-2] == 1:
                del cuts[-2]
            batches += [
                pairs.arrays(rows[start:stop], self.group(source, target))
                for start, stop in pairwise(cuts)
            ]
        return batches

    def sample(self) -> Arrays:
        pairs = len(self._train.costs)  # direction by direction: of each its share
        rows = np.linspace(0, pairs - 1, min(FREQUENCY_PAIRS, pairs)).astype(np.int64)
        return self._train.arrays(rows)

    def group(self, source: str, target: str) -> str:
        """'low' or 'high' resource where the task knows both, else ''."""
        if not self._low:
            return ""
        return "low" if (source, target) in self._low else "high"

    @property
    def filtered(self) -> str:
        """What filters left out, in words; empty where that is nothing."""
        return ", ".join(f"{n} {reason}" for reason, n in self.left_out.items() if n)

    @property
    def beyond(self) -> list[str]:
        """A line for each option that would leave more pairs of a direction than it has."""
        low = {direction: self._texts("train", *direction) for direction in self._low}
        found = []
        for field, pairs in (("low_pairs", low), ("test_pairs", self._test)):
            most = getattr(self.options, field)
            short = [f"{'>'.join(d)} ({len(p)})" for d, p in pairs.items() if len(p) < most]
            if short:
                found.append(f"data.{field}: {most} is more than {', '.join(short)} can give")
        return found

    @property
    def notes(self) -> list[str]:
        """What a user has to know before a run, a line each: what filters left out, how targets are
        scored, options that the corpus cannot fulfil."""
        left_out = [f"left out {self.filtered}"] if self.filtered else []
        lines = [*left_out, *guessed(target for _, target in self.directions), *self.beyond]
        return [f"{self.options.corpus}: {line}" for line in lines]

    @property
    def sizes(self) -> dict[str, int]:
        """Pairs by split that filters leave, all directions together."""
        return {
            "train": len(self._train.costs),
            "valid": sum(len(pairs.costs) for pairs in self._valid.values()),
            "test": sum(len(test.pairs) for test in self.tests),
        }

    @cached_property
    def tests(self) -> list[HeldOut]:
        """The pairs to translate, direction by direction, with what needs no model; not those of
        directions without any."""
        found = (
            HeldOut.of(
                source,
                target,
                self.group(source, target),
                self._test[source, target],
                self._texts("train", source, target),
            )
            for source, target in self.directions
        )
        return [test for test in found if test.pairs]

    @property
    def tags(self) -> list[int]:
        """Tokens that name a target language."""
        return list(self._pieces.tags.values())

    def sources(self, test: HeldOut) -> list[tuple[Array, Array, list[int]]]:
        """(rows of the test, sources_BS, most tokens of each translation), batch by batch."""
        source = self._sources([text for text, _ in test.pairs], test.target)
        costs = source.lengths
        order = np.argsort(costs, kind="stable")
        longest = costs * LONGEST_FACTOR + LONGEST_MORE
        return [
            (rows, source.padded(rows, PAD), longest[rows].tolist())
            for rows in (order[a:b] for a, b in pairwise(_cuts(longest, DECODED_TOKENS)))
        ]

    def texts(self, translations: Sequence[Sequence[int]]) -> list[str]:
        """The texts that lists of token numbers stand for."""
        return self._pieces.decode(translations)

    def _texts(self, split: str, source: str, target: str) -> list[Text]:
        """Pairs with text on both sides, each once, none held out that is trained on, within the
        limits of words and of the direction."""
        key = split, source, target
        if key not in self._read:  # what is left out is counted once
            self._read[key] = self._sift(*key)
        return self._read[key]

    def _sift(self, split: str, source: str, target: str) -> list[Text]:
        at = self._corpus.columns.index(source), self._corpus.columns.index(target)
        rows = self._corpus.splits.get(split, [])
        given = [(row[at[0]], row[at[1]]) for row in rows if row[at[0]] and row[at[1]]]
        first: dict[Row, Text] = {}  # of pairs that look the same: rows differ in other languages
        for pair in given:
            first.setdefault(alike(pair), pair)
        pairs = list(first.values())
        self.left_out[f"{split} pairs repeated"] += len(given) - len(pairs)
        if most := self.options.max_words:
            short = [p for p in pairs if max(len(side.split()) for side in p) <= most]
            self.left_out[f"{split} pairs of more than {most} words"] += len(pairs) - len(short)
            pairs = short
        if split == "train":
            return pairs[: self.options.low_pairs] if (source, target) in self._low else pairs
        trained = set(map(alike, self._texts("train", source, target)))
        apart = [pair for pair in pairs if alike(pair) not in trained]
        self.left_out[f"{split} pairs in training"] += len(pairs) - len(apart)
        return apart

    def _test_texts(self, source: str, target: str) -> list[Text]:
        """As in training, but that only sources too long for any memory are left out."""
        pairs = self._texts("test", source, target)
        lengths = self._sources([text for text, _ in pairs], target).lengths
        kept = [pair for pair, most in zip(pairs, lengths, strict=True) if most <= TEST_TOKENS]
        self.left_out[f"test pairs of more than {TEST_TOKENS} tokens"] += len(pairs) - len(kept)
        return kept[: self.options.test_pairs or None]

    def _encode(
        self, direction: tuple[str, str], pairs: list[Text], split: str
    ) -> tuple[Paired, list[Text]]:
        """The pairs of a direction within `train.length`, as tokens and as text."""
        whole = Paired(
            self._sources([source for source, _ in pairs], direction[1]),
            self._sentences([target for _, target in pairs], [BOS]),
        )
        kept = np.flatnonzero(whole.costs <= self._length)
        lost = len(whole.costs) - len(kept)
        self.left_out[f"{split} pairs of more than {self._length} tokens"] += lost
        return whole.take(kept), [pairs[i] for i in kept.tolist()]

    def _sources(self, texts: list[str], target: str) -> Sentences:
        """Tagged with the target language, where there are several."""
        return self._sentences(texts, [self._pieces.tags[target]] if self._tagged else [])

    def _sentences(self, texts: list[str], head: list[int]) -> Sentences:
        rows = [np.array([*head, *row, EOS], np.int32) for row in self._pieces.encode(texts)]
        starts = np.cumsum([0, *map(len, rows)])
        return Sentences(np.concatenate([np.zeros(0, np.int32), *rows]), starts)

    @lru_cache(maxsize=1)  # noqa: B019  a task lives as long as its worker
    def _training_cuts(self, tokens: int) -> list[int]:
        return _cuts(self._train.costs, tokens)

    @lru_cache(maxsize=4)  # noqa: B019
    def _epoch(self, seed: int, epoch: int, batches: int) -> tuple[Array, Array]:
        """Rows by length, ties in any order, and the order of batches."""
        draw = generator(0, seed, epoch)
        rows = by_length(self._train, draw.permutation(len(self._train.costs)))
        return rows, draw.permutation(batches)


def load_parallel(
    options: Translation, data: Path, length: int, held_out: Validation = "valid"
) -> Parallel:
    return Parallel(options, load_corpus(options, data), length, held_out)


def _cuts(costs: Array, tokens: int) -> list[int]:
    """Where to cut pairs, sorted by cost, so that rows x the longest stay within the budget."""
    cuts, ordered = [0], np.sort(costs)
    for i, cost in enumerate(ordered.tolist()):
        if cuts[-1] < i and (i - cuts[-1] + 1) * cost > tokens:
            cuts.append(i)
    return [*cuts, len(ordered)] if len(ordered) else [0]
