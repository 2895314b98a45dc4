"""Characters of real text, for language models and masked encoders. No torch is imported.

`code_text` reads the Python sources of the installed torch.nn.modules, real text that every user of
this harness has; `text` reads files that the user names.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np

from harness.data.arrays import (
    IGNORE,
    MASK,
    SPECIALS,
    UNKNOWN,
    Array,
    Arrays,
    Validation,
    generator,
)
from harness.data.files import decoded, expanded, shown, unpacked
from harness.errors import ConfigError
from harness.fields import Positive, Strict

VALID_SHARE = 0.1  # the end of each file; of a tuning, the end of what is left to train on
MASKED_SHARE, MASK_TOKEN_SHARE, RANDOM_SHARE = 0.15, 0.8, 0.1  # arXiv:1810.04805 section 3.1


class CodeText(Strict):
    """Characters of the Python sources of torch.nn.modules."""

    name: Literal["code_text"]
    valid_windows: Positive = 128


class Text(Strict):
    """Characters of the user's files; .gz is unpacked. Folders and patterns are searched for files
    that are not hidden."""

    name: Literal["text"]
    path: str
    valid_windows: Positive = 128


class Characters:
    """Windows of a text, read left to right (decoder) or with masked characters (encoder)."""

    def __init__(
        self,
        files: tuple[str, ...],
        windows: int,
        family: str,
        length: int,
        sha: str,
        held_out: Validation = "valid",
    ) -> None:
        train, valid = _parted(files)
        letters = {letter: SPECIALS + i for i, letter in enumerate(sorted(set("".join(train))))}
        purpose = ""
        if held_out == "tuning":
            train, valid = _parted(train)
            purpose = " and a tuning, which validates on a tenth of the training part"
        if sum(map(len, valid)) <= length + 1:
            raise ConfigError(
                f"data: {sum(map(len, files))} characters are too few for train.length {length}"
                f"{purpose}; name more text"
            )
        self.vocabularies = (SPECIALS + len(letters),) * 2
        self.sha = sha
        self._train, self._valid = (_encode("".join(part), letters) for part in (train, valid))
        self._masked, self._length, self._windows = family == "encoder", length, windows

    def train(self, seed: int, index: int, sequences: int) -> Arrays:
        draw = generator(0, seed, index)
        starts = draw.integers(0, len(self._train) - self._length, sequences)
        return self._window(self._train, starts, draw)

    def valid(self, sequences: int) -> list[Arrays]:
        last = len(self._valid) - self._length - 1
        windows = min(self._windows, max(1, last // self._length))
        starts = np.linspace(0, last, windows).astype(np.int64)
        # Drawn at once, so that masks do not depend on how the set is cut.
        whole = self._window(self._valid, starts, generator(1, 0, 0))
        return [whole.rows(i, i + sequences) for i in range(0, windows, sequences)]

    def sample(self) -> Arrays:
        starts = np.arange(0, len(self._train) - self._length, self._length)
        inputs_BT, targets_BT = self._cut(self._train, starts)
        return Arrays(inputs_BT, targets_BT, inputs_BT)

    def _cut(self, tokens: Array, starts: Array) -> tuple[Array, Array]:
        window = tokens[starts[:, None] + np.arange(self._length + 1)]
        return window[:, :-1], window[:, 1:]

    def _window(self, tokens: Array, starts: Array, draw: np.random.Generator) -> Arrays:
        previous_BT, true_BT = self._cut(tokens, starts)
        if not self._masked:
            return Arrays(previous_BT, true_BT, previous_BT)
        chosen_BT = draw.random(true_BT.shape) < MASKED_SHARE
        chosen_BT[:, 0] |= ~chosen_BT.any(axis=1)  # every window has a target
        fate_BT = draw.random(true_BT.shape)
        random_BT = draw.integers(SPECIALS, self.vocabularies[1], true_BT.shape)
        hidden_BT = np.where(fate_BT < MASK_TOKEN_SHARE, MASK, true_BT)
        hidden_BT = np.where(fate_BT >= 1 - RANDOM_SHARE, random_BT, hidden_BT)
        return Arrays(
            np.where(chosen_BT, hidden_BT, true_BT),
            np.where(chosen_BT, true_BT, IGNORE),
            previous_BT,
        )


def load_text(
    options: CodeText | Text, data: Path, family: str, length: int, held_out: Validation = "valid"
) -> Characters:
    files, sha = _files(text_paths(options, data)), text_sha(options, data)
    return Characters(files, options.valid_windows, family, length, sha, held_out)


def text_sha(options: CodeText | Text, data: Path) -> str:
    """Hash of the characters, file by file; names and folders do not count."""
    digest = hashlib.sha256()
    for text in _files(text_paths(options, data)):
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()[:12]


def text_paths(options: CodeText | Text, data: Path) -> tuple[Path, ...]:
    if isinstance(options, CodeText):
        torch = find_spec("torch")
        assert torch is not None and torch.origin is not None
        return tuple(sorted((Path(torch.origin).parent / "nn" / "modules").glob("*.py")))
    try:
        path = expanded(Path(options.path))
    except ConfigError as error:
        raise ConfigError(f"data.path: {error}") from None
    root = Path(path.anchor) if path.is_absolute() else data
    pattern = str(path.relative_to(root)) if path.is_absolute() else str(path)
    named = root / pattern
    if named.is_file():
        return (named,)
    found = named.rglob("*") if named.is_dir() else root.glob(pattern)
    paths = tuple(shown(found, root, pattern))
    if not paths:
        raise ConfigError(
            f"data.path: no file at '{options.path}' in '{data}'; name a file, folder or pattern"
        )
    return paths


def _files(paths: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(_read(path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)


@lru_cache(maxsize=512)
def _read(path: Path, changed: int, size: int) -> str:
    """The text of a file; `changed` and `size` tell a new content from one that was read before."""
    return decoded(path, unpacked(path))


def _parted(files: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What each file gives to training, and its end, which is held out."""
    cuts = [round(len(text) * (1 - VALID_SHARE)) for text in files]
    parts = [(text[:cut], text[cut:]) for text, cut in zip(files, cuts, strict=True)]
    return tuple(train for train, _ in parts), tuple(end for _, end in parts)


def _encode(text: Iterable[str], letters: dict[str, int]) -> Array:
    return np.fromiter((letters.get(letter, UNKNOWN) for letter in text), dtype=np.int64)
