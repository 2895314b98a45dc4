"""What a config says of a translation task. No torch.

A direction is 'source>target', two columns of the corpus; 'en>*' stands for all targets of en.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from harness.data.corpora.listing import locate
from harness.data.corpora.tables import Corpus, read
from harness.errors import ConfigError, did_you_mean
from harness.fields import Count, Level, Positive, Strict, Typed

ANY = "*"


def _directions(value: Any) -> Any:
    """One direction or a list of them; on a command line the list is JSON."""
    if isinstance(value, Typed) and value.startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    given = [str(value)] if isinstance(value, str) else value
    fits = isinstance(given, list | tuple)
    if fits and all(isinstance(each, str) and _reads(each) for each in given):
        return tuple(str(each) for each in given)
    raise PydanticCustomError("expected", "expected 'source>target' or a list of such")


def _reads(direction: str) -> bool:
    source, arrow, target = direction.partition(">")
    return bool(source and arrow and target) and ">" not in target


Directions = Annotated[tuple[str, ...], BeforeValidator(_directions)]


class Translation(Strict):
    """Sentence pairs of a corpus; `train.batch` counts tokens, padding included, of the longer side
    of each pair, and pairs with more than `train.length` tokens on a side are left out.

    Directions of `low_resource` train on their first `low_pairs` pairs; validation losses and
    scores are then reported for them and for the others too.
    """

    name: Literal["translation"]
    corpus: str  # help-de-en, another name in the data folder, or a path to a TSV
    directions: Annotated[Directions, Field(min_length=1)] = ("src>tgt",)
    pieces: Positive = 8000  # joint byte-pair vocabulary of all languages, special tokens aside
    max_words: Count = 0  # on either side, in every split; 0: no limit
    low_resource: Directions = ()
    low_pairs: Positive = 500
    test_pairs: Count = 0  # most pairs of a direction to translate; 0: all
    beam: Positive = 1  # hypotheses; 1 is greedy
    # A hypothesis' score is the sum of its log-probabilities over its length to this power.
    length_penalty: Annotated[Level, Field(le=10)] = 1.0

    @model_validator(mode="after")
    def _one_spelling(self) -> "Translation":
        """Where no direction is cut, it is the same cell whatever the others would be cut to."""
        if not self.low_resource:
            object.__setattr__(self, "low_pairs", type(self).model_fields["low_pairs"].default)
        return self


def corpus_path(corpus: str, data: Path) -> Path:
    """The file of a corpus; ConfigError where there is none."""
    try:
        return locate(corpus, data)
    except ConfigError as error:
        raise ConfigError(f"data.corpus: {error}; --data names another folder") from None


def load_corpus(options: Translation, data: Path) -> Corpus:
    return read(corpus_path(options.corpus, data))


def translation_sha(options: Translation, data: Path) -> str:
    """Hash of the corpus file's content; ConfigError where it lacks a direction, too."""
    corpus = load_corpus(options, data)
    directions(options, corpus)
    low_resource(options, corpus)
    return corpus.sha


def directions(options: Translation, corpus: Corpus) -> list[tuple[str, str]]:
    """The columns of each direction, 'en>*' written out; ConfigError where there is no such."""
    return _expanded(options.directions, "data.directions", corpus)


def low_resource(options: Translation, corpus: Corpus) -> list[tuple[str, str]]:
    """The directions whose training pairs are cut; ConfigError where the task lacks one."""
    found = _expanded(options.low_resource, "data.low_resource", corpus)
    for pair in found:
        if pair not in (known := directions(options, corpus)):
            raise ConfigError(
                f"data.low_resource: {'>'.join(pair)!r} is no direction of the task"
                f"{did_you_mean('>'.join(pair), map('>'.join, known))}"
            )
    return found


def _expanded(written: Iterable[str], field: str, corpus: Corpus) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for each in written:
        source, target = each.split(">")
        for name in (source, target):
            if name != ANY and name not in corpus.columns:
                raise ConfigError(
                    f"{field}: {each!r}: the corpus has no column {name!r}"
                    f"{did_you_mean(name, corpus.columns)}"
                )
        pairs = [(s, t) for s in _named(source, corpus) for t in _named(target, corpus) if s != t]
        if not pairs:
            raise ConfigError(f"{field}: {each!r} names one column twice; name two")
        found += [pair for pair in pairs if pair not in found]
    return found


def _named(column: str, corpus: Corpus) -> Iterable[str]:
    return corpus.columns if column == ANY else (column,)
