"""What a config may say of a translation task, and where its corpus is looked for."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.data.tasks import data_sha
from harness.data.translation.options import (
    Translation,
    corpus_path,
    directions,
    load_corpus,
    low_resource,
)
from harness.errors import ConfigError
from harness.fields import Typed
from tests import parallel


def options(corpus: str = "many", **given: Any) -> Translation:
    return Translation(name="translation", corpus=corpus, **given)


def test_a_corpus_is_found_by_name_packed_or_not_and_by_path(tmp_path: Path) -> None:
    plain = parallel.write(tmp_path)
    assert corpus_path("toy", tmp_path) == plain
    assert corpus_path("toy.tsv", tmp_path) == plain
    assert corpus_path(str(plain), Path("/nowhere")) == plain
    packed = plain.rename(tmp_path / "deu-eng.tsv.gz")
    assert corpus_path("help-de-en", tmp_path) == packed


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("help-multi", "'harness data build help-multi --data {}'; --data names another folder"),
        ("help-de-e", "no corpus 'help-de-e' (did you mean 'help-de-en'?); --data names"),
        ("mine", "no corpus 'mine' (known: "),
        ("mine.tsv", "mine.tsv: cannot be read (No such file or directory); name a file"),
    ],
)
def test_a_corpus_that_is_not_there_is_one_line_with_a_remedy(
    tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        data_sha(options(name), tmp_path)
    assert message.format(tmp_path) in str(error.value)
    assert str(error.value).startswith(("data.corpus: ", "mine.tsv: "))
    assert "\n" not in str(error.value)


def test_directions_name_columns_and_a_star_stands_for_all_others(tmp_path: Path) -> None:
    parallel.write_many(tmp_path)

    def read(*written: str) -> list[tuple[str, str]]:
        given = options(directions=written)
        return directions(given, load_corpus(given, tmp_path))

    assert read("de>en") == [("de", "en")]
    assert read("en>*") == [("en", "de"), ("en", "bk"), ("en", "zh-CN")]
    assert read("*>en", "de>en", "en>de") == [
        *(("de", "en"), ("bk", "en"), ("zh-CN", "en")),
        ("en", "de"),
    ]


@pytest.mark.parametrize("field", ["directions", "low_resource"])
@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("de>fr", "'de>fr': the corpus has no column 'fr' (known: bk, de, en, zh-CN)"),
        ("zh-CM>en", "'zh-CM>en': the corpus has no column 'zh-CM' (did you mean 'zh-CN'?)"),
        ("en>en", "'en>en' names one column twice; name two"),
    ],
)
def test_a_direction_that_the_corpus_lacks_is_refused_before_training(
    tmp_path: Path, field: str, written: str, message: str
) -> None:
    parallel.write_many(tmp_path)
    given = options(**{"directions": ("de>en",), field: (written,)})
    with pytest.raises(ConfigError) as error:
        data_sha(given, tmp_path)
    assert str(error.value) == f"data.{field}: {message}"


def test_low_resource_directions_are_directions_of_the_task(tmp_path: Path) -> None:
    parallel.write_many(tmp_path)
    given = options(directions=("en>*",), low_resource=("en>bk",))
    assert low_resource(given, load_corpus(given, tmp_path)) == [("en", "bk")]
    with pytest.raises(ConfigError, match=r"data.low_resource: 'bk>en' is no direction"):
        data_sha(options(directions=("en>*",), low_resource=("bk>en",)), tmp_path)


@pytest.mark.parametrize("value", ["de", "de>", ">en", "de>en>fr", 3, ["de>en", 3], []])
def test_directions_of_another_form_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        options(directions=value)


def test_directions_read_alike_from_a_file_and_from_a_command_line() -> None:
    listed = options(directions=["de>en", "en>de"])
    assert options(directions=Typed('["de>en", "en>de"]')) == listed
    assert options(directions=Typed("de>en")) == options(directions=("de>en",))
    assert hash(listed) == hash(options(directions=("de>en", "en>de")))


def test_the_hash_is_that_of_the_content_whatever_the_options(tmp_path: Path) -> None:
    parallel.write(tmp_path)
    sha = data_sha(options("toy"), tmp_path)
    assert data_sha(options("toy", pieces=50, directions=("tgt>src",)), tmp_path) == sha
    parallel.write(tmp_path, test=25)
    assert data_sha(options("toy"), tmp_path) != sha


def test_where_no_direction_is_cut_it_does_not_matter_to_what() -> None:
    given = {"name": "translation", "corpus": "toy", "low_pairs": 7}
    assert Translation(**given) == Translation(name="translation", corpus="toy")
    assert Translation(**given, low_resource=("src>tgt",)).low_pairs == 7
