"""Joint byte-pair encoding of all languages of a task, trained on its training split. No torch."""

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.data.arrays import SPECIALS, UNKNOWN

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # as Metaspace writes it
OWN = "\N{REPLACEMENT CHARACTER}"  # stands for characters that training has not seen
ALPHABET = 6000  # most characters: Chinese and Japanese have more, seen once or twice each


class Pieces:
    """Text to token numbers and back. Numbers below `offset` are special tokens and tags."""

    def __init__(self, tokenizer: Tokenizer, tags: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self.tags = {tag: SPECIALS + i for i, tag in enumerate(tags)}
        self.offset = SPECIALS + len(tags) - 1  # the tokenizer's 0 is its unknown
        self.vocabulary = self.offset + tokenizer.get_vocab_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of each text, without begin and end."""
        return [
            [self.offset + i if i else UNKNOWN for i in encoding.ids]
            for encoding in self._tokenizer.encode_batch(list(texts))
        ]

    def decode(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Texts; special tokens say nothing."""
        said = [[i - self.offset for i in row if i > self.offset] for row in tokens]
        return [text.strip() for text in self._tokenizer.decode_batch(said)]


def pieces_of(texts: Iterable[str], count: int, tags: Sequence[str]) -> Pieces:
    """Byte-pair encoding with `count` pieces at most, trained on `texts`.

    What was trained once is kept in the user's cache, under the hash of texts and settings.
    """
    texts = list(texts)
    untrained, letters = _untrained(), _alphabet(texts, min(ALPHABET, max(1, count // 2)))
    settings = tokenizers.__version__, untrained.to_str(), count, letters
    digest = hashlib.sha256(repr(settings).encode())
    for text in texts:
        digest.update(text.encode() + b"\n")
    name = f"pieces-{digest.hexdigest()[:24]}.json"
    tokenizer = _kept(name)
    if tokenizer is None:
        tokenizer = _train(untrained, texts, count, letters)
        _keep(tokenizer, name)
    return Pieces(tokenizer, tags)


def _untrained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=OWN))
    # A space belongs to the word behind it; digits and punctuation stand alone.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Punctuation(),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _alphabet(texts: Iterable[str], most: int) -> list[str]:
    """The most frequent characters, of equals the first: the trainer's own choice among equals
    differs from process to process."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.replace(" ", SPACE))
    counts[SPACE] += len(counts)  # a text begins with one
    return sorted(sorted(counts, key=lambda letter: (-counts[letter], letter))[:most])


def _train(tokenizer: Tokenizer, texts: list[str], count: int, letters: list[str]) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=1 + count,
        special_tokens=[OWN],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(root) / "residual-depth-harness"  # pathlib raises where there is no home


def _kept(name: str) -> Tokenizer | None:
    """What was trained before; None where it is absent or broken."""
    try:
        written = (_cache() / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    try:
        return Tokenizer.from_str(written)
    except Exception:  # tokenizers raises nothing more special
        return None


def _keep(tokenizer: Tokenizer, name: str) -> None:
    """A cache only saves time: where it cannot be written, all goes on without it."""
    path = _cache() / name
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_text(tokenizer.to_str(), encoding="utf-8")
            written.replace(path)
