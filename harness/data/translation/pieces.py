"""Joint byte-pair encoding of all languages of a task, trained on its training split. No torch."""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.data.arrays import SPECIALS, UNKNOWN

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
    digest = hashlib.sha256(f"{tokenizers.__version__} {count} {ALPHABET}".encode())
    for text in texts:
        digest.update(text.encode() + b"\n")
    cached = _cache() / f"pieces-{digest.hexdigest()[:24]}.json"
    try:
        tokenizer = Tokenizer.from_file(str(cached))
    except Exception:  # tokenizers raises no other: absent or broken, it is made again
        tokenizer = _train(texts, count)
        _keep(tokenizer, cached)
    return Pieces(tokenizer, tags)


def _train(texts: list[str], count: int) -> Tokenizer:
    trained = Tokenizer(models.BPE(unk_token=OWN))
    # A space belongs to the word behind it; digits and punctuation stand alone.
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Punctuation(),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    trained.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=1 + count,
        special_tokens=[OWN],
        limit_alphabet=min(ALPHABET, max(1, count // 2)),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    return trained


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "residual-depth-harness"


def _keep(tokenizer: Tokenizer, path: Path) -> None:
    """A cache only saves time: where it cannot be written, all goes on without it."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_text(tokenizer.to_str(), encoding="utf-8")
            written.replace(path)
