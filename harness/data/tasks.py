"""Tasks by name: options, the families they serve, the hash of their content. No torch."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness.data.arrays import Task, Validation
from harness.data.synthetic import Pairs, Recall, Reverse, Synthetic, synthetic_sha
from harness.data.text import CodeText, Text, load_text, text_paths, text_sha
from harness.data.translation.options import Translation, corpus_path, translation_sha
from harness.fields import Strict

TaskOptions = Annotated[
    CodeText | Text | Reverse | Recall | Translation, Field(discriminator="name")
]

FAMILIES: dict[str, tuple[str, ...]] = {
    "code_text": ("decoder", "encoder"),
    "text": ("decoder", "encoder"),
    "reverse": ("encoder_decoder", "decoder", "encoder"),
    "recall": ("encoder_decoder", "decoder"),
    "translation": ("encoder_decoder",),
}
TASKS: dict[str, type[Strict]] = {
    "code_text": CodeText,
    "text": Text,
    "reverse": Reverse,
    "recall": Recall,
    "translation": Translation,
}


def load(
    options: TaskOptions, data: Path, family: str, length: int, held_out: Validation = "valid"
) -> Task:
    """The task as a family needs it; ConfigError when its files are missing or too short.

    With `held_out="tuning"` a corpus validates on a part of its training set, and leaves that part
    out of training; a synthetic task draws anew. Vocabularies stay the same.
    """
    if isinstance(options, Synthetic):
        return Pairs(options, family, length, held_out)
    if isinstance(options, Translation):
        from harness.data.translation.task import load_parallel  # tokenizers, scipy

        return load_parallel(options, data, length, held_out)
    return load_text(options, data, family, length, held_out)


def data_sha(options: TaskOptions, data: Path) -> str:
    """Hash of the content at hand; ConfigError when it is not there."""
    if isinstance(options, Synthetic):
        return synthetic_sha(options)
    if isinstance(options, Translation):
        return translation_sha(options, data)
    return text_sha(options, data)


def files(options: TaskOptions, data: Path) -> tuple[Path, ...]:
    """The files that hold the content; ConfigError when they are not there."""
    if isinstance(options, Synthetic):
        return ()
    if isinstance(options, Translation):
        return (corpus_path(options.corpus, data),)
    return text_paths(options, data)
