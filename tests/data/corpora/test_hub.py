"""Corpora from files that the `datasets` library reads, and from a hub that is out of reach."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.data.corpora import hub
from harness.data.corpora.hub import Source
from harness.errors import ConfigError

SPLITS = {"train": "train", "valid": "validation", "test": "test"}
FLAT = {"de": "de", "en": "en"}
TEXTS = {
    "train": [("Eins.", "One."), ("Zwei\tDrei.", "Two\nthree."), ("Eins.", "One.")],
    "validation": [("Vier.", "Four."), ("Eins.", "One."), ("Allein.", "")],
    "test": [("Fünf.", 'Say "five".')],
}
EXPECTED = {
    "train": [("Eins.", "One."), ("Zwei Drei.", "Two three.")],
    "valid": [("Vier.", "Four.")],
    "test": [("Fünf.", 'Say "five".')],
}
LEFT_OUT = {"repeated": 1, "no text": 1, "in training": 1}


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def write(folder: Path, kind: str) -> None:
    folder.mkdir(exist_ok=True)
    for split, pairs in TEXTS.items():
        path = folder / f"{split}.{kind}"
        if kind == "csv":
            lines = ["en,de", *(f"{quoted(en)},{quoted(de)}" for de, en in pairs)]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        elif kind == "jsonl":
            rows = [{"id": i, "translation": {"de": p[0], "en": p[1]}} for i, p in enumerate(pairs)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            found = [{"de": de, "en": en or None} for de, en in pairs]
            pq.write_table(pa.table({"translation": found}), path)


NESTED = {"de": "translation.de", "en": "translation.en"}


@pytest.mark.parametrize(
    ("kind", "columns"), [("csv", FLAT), ("jsonl", NESTED), ("parquet", NESTED)]
)
def test_a_folder_of_files_is_read_by_split_and_column(
    tmp_path: Path, kind: str, columns: dict[str, str]
) -> None:
    write(tmp_path / "set", kind)
    corpus, origin = hub.fetch("mine", Source(str(tmp_path / "set"), columns, SPLITS))
    assert corpus.columns == ("de", "en")
    assert corpus.splits == EXPECTED
    assert corpus.left_out == LEFT_OUT
    assert origin == str(tmp_path / "set")
    assert {path.suffix for path in (tmp_path / "set").iterdir()} == {f".{kind}"}


def test_splits_may_be_files_of_the_dataset(tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    files = {"train": "train.parquet", "valid": "validation.parquet", "test": "t*.parquet"}
    corpus, _ = hub.fetch("mine", Source(str(tmp_path), NESTED, files))
    assert corpus.splits["train"] == EXPECTED["train"]
    assert corpus.splits["test"] == EXPECTED["test"]  # train rows, caught by the pattern, are out
    assert corpus.left_out["in training"] == 3


def test_a_single_file_is_cut_into_splits(tmp_path: Path) -> None:
    path = tmp_path / "all.tsv"
    lines = ["de\ten", *(f'"wort {i}\tword {i}' for i in range(10))]
    path.write_text("\n".join(lines) + "\n")
    cut = {"train": "train[:60%]", "valid": "train[60%:80%]", "test": "train[80%:]"}
    corpus, _ = hub.fetch("mine", Source(str(path), {"en": "en", "de": "de"}, cut))
    assert corpus.columns == ("en", "de")
    assert {split: len(rows) for split, rows in corpus.splits.items()} == {
        "train": 6,
        "valid": 2,
        "test": 2,
    }
    assert corpus.splits["valid"][0] == ("word 6", '"wort 6')


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"columns": {"de": "translation.de", "en": "translation.eng"}},
            "no column 'translation.eng' in split 'train' (did you mean 'translation.en'?)",
        ),
        (
            {"columns": {"de": "translation.de", "en": "id"}},
            "column 'id' holds int64, not text; choose with --columns",
        ),
        (
            {"splits": {"train": "train", "valid": "valid"}},
            'Unknown split "valid". Should be one of',
        ),
        ({"splits": {"train": "train"}}, "no line of split 'valid' is left"),
        ({"splits": {"train": "nowhere/*.jsonl"}}, "set: no file 'nowhere/*.jsonl'; check"),
        ({"config": "other"}, "BuilderConfig 'other' not found."),
    ],
    ids=["column", "numbers", "split", "no valid", "files", "config"],
)
def test_what_a_dataset_does_not_have_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    write(tmp_path / "set", "jsonl")
    source = Source(str(tmp_path / "set"), NESTED, SPLITS)._replace(**changes)
    with pytest.raises(ConfigError) as caught:
        hub.fetch("mine", source)
    assert str(caught.value).startswith("mine: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dataset", ["./nowhere", "/nowhere/at/all", "nowhere.csv"])
def test_a_path_that_is_not_there_is_not_asked_for_on_the_hub(dataset: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hub.fetch("mine", Source(dataset, FLAT, SPLITS))
    assert str(caught.value) == (f"mine: no file or folder '{dataset}'; name a dataset or a path")


def test_a_bare_name_is_the_folder_and_not_a_reader_of_all_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        hub.fetch("mine", Source("csv", FLAT, SPLITS))
    said = "mine: 'csv' is a kind of files, not a dataset; name OWNER/DATASET or a path"
    assert str(caught.value) == said
    write(tmp_path / "csv", "csv")
    (tmp_path / "other").mkdir()
    for split in SPLITS.values():
        (tmp_path / "other" / f"{split}.csv").write_text(f"de,en\nFremd {split},Foreign {split}\n")
    assert hub.fetch("mine", Source("csv", FLAT, SPLITS))[0].splits == EXPECTED


def test_hidden_files_of_a_folder_are_neither_read_nor_decide_how(tmp_path: Path) -> None:
    for split in SPLITS.values():
        (tmp_path / f"{split}.csv").write_text(f"de,en\nNA {split},null\nnull,NA {split}\n")
    before = hub.fetch("mine", Source(str(tmp_path), FLAT, SPLITS))[0]
    assert before.splits["train"] == [("NA train", "null"), ("null", "NA train")]
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "train.json").write_text("{}")
    (tmp_path / ".DS_Store").write_bytes(b"\0\1\xff")
    (tmp_path / ".train.csv").write_text("de,en\nx,y\n")
    assert hub.fetch("mine", Source(str(tmp_path), FLAT, SPLITS))[0] == before


def test_a_path_that_the_library_would_take_for_a_pattern_is_refused(tmp_path: Path) -> None:
    for name in ("x1.csv", "x[1].csv"):
        (tmp_path / name).write_text("de,en\na,b\n")
    path = tmp_path / "x[1].csv"
    with pytest.raises(ConfigError) as caught:
        hub.fetch("mine", Source(str(path), FLAT, SPLITS))
    assert str(caught.value) == (
        f"mine: '{path}': the datasets library reads *, ? and [ as patterns; rename the path"
    )


def test_a_table_that_is_not_utf8_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("de,en\nä,b\n", encoding="utf-16")
    with pytest.raises(ConfigError) as caught:
        hub.fetch("mine", Source(str(path), FLAT, SPLITS))
    said = f"mine: {path}: holds text that is not UTF-8; convert its files"
    assert str(caught.value) == said


WORDS = ["NA", "null", "None", "nan", 'a "b', 'c" d', '"', "True"]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
@pytest.mark.parametrize("whole", [True, False], ids=["file", "folder"])
def test_words_that_stand_for_nothing_elsewhere_are_texts(
    tmp_path: Path, kind: str, *, whole: bool
) -> None:
    """A table of texts has no missing numbers; a file of tabs has no quotes."""
    break_, said = (",", quoted) if kind == "csv" else ("\t", str)
    splits = {"train": WORDS, "valid": ["N/A"], "test": ["n/a"]}
    lines = {
        split: [f"{said(word)}{break_}{said(f'{word} {split}')}" for word in words]
        for split, words in splits.items()
    }
    head = f"de{break_}en"
    if whole:
        at, source = len(WORDS), tmp_path / f"all.{kind}"
        together = [head, *(line for texts in lines.values() for line in texts)]
        source.write_text("\n".join(together) + "\n")
        names = {"train": f"train[:{at}]", "valid": f"train[{at}:-1]", "test": "train[-1:]"}
    else:
        for split, texts in lines.items():
            (tmp_path / f"{split}.{kind}").write_text("\n".join([head, *texts]) + "\n")
        source, names = tmp_path, SPLITS
    corpus, _ = hub.fetch("mine", Source(str(source), FLAT, names))
    assert corpus.splits == {
        split: [(word, f"{word} {split}") for word in words] for split, words in splits.items()
    }
    assert corpus.left_out == {}


def test_a_corpus_of_opus_100_is_of_two_languages() -> None:
    found = hub.preset("opus100-fr-en")
    assert found is not None
    assert (found.config, [*found.columns]) == ("en-fr", ["fr", "en"])
    assert hub.preset("opus100-en-en") is None


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("")
    with pytest.raises(ConfigError, match=rf"^mine: {path}: no rows; check dataset"):
        hub.fetch("mine", Source(str(path), FLAT, SPLITS))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.doc").write_text("x")
    with pytest.raises(ConfigError, match=r"a file of kind '.doc' \(known: .csv, .tsv, .json"):
        hub.fetch("mine", Source(str(tmp_path / "a.doc"), FLAT, SPLITS))


def test_an_unknown_split_of_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown split 'dev' \(known: test, train, valid\)"):
        hub.fetch("mine", Source("x", FLAT, {"train": "train", "dev": "dev"}))


def test_without_the_library_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError) as caught:
        hub.fetch("multi30k", hub.PRESETS["multi30k"])
    assert str(caught.value) == (
        "multi30k: needs the datasets library; install it with: pip install '.[hub]'"
    )


@pytest.mark.parametrize("name", ["multi30k", "iwslt14", "wmt17", "opus100-de-en", "opus100-fr-en"])
def test_a_preset_asks_the_hub_for_its_pinned_revision_first(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = hub.preset(name)
    assert source is not None and source.revision is not None and len(source.revision) == 40
    asked: list[Any] = []

    def dataset_info(self: Any, dataset: str, *, revision: str, timeout: float) -> Any:
        assert (dataset, revision) == (source.dataset, source.revision) and timeout <= 5
        return SimpleNamespace(sha=revision)

    def load_dataset(path: str, *rest: Any, **options: Any) -> Any:
        asked.append((path, *rest, options))
        nested = any("." in theirs for theirs in source.columns.values())
        row = {ours: f"{ours} {len(asked)}" for ours in source.columns}
        rows = [{"translation": row}] if nested else [row]
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    corpus, origin = hub.fetch(name, source)
    assert origin == f"{source.dataset}, revision {source.revision}"
    assert corpus.columns == tuple(source.columns)
    assert corpus.splits["valid"] == [tuple(f"{ours} 2" for ours in source.columns)]
    if name == "iwslt14":
        files = f"hf://datasets/{source.dataset}@{source.revision}/de-en/train/0000.parquet"
        assert asked[0] == ("parquet", {"data_files": files, "split": "train", "cache_dir": None})
    else:
        config = {"multi30k": None, "opus100-fr-en": "en-fr"}.get(name, "de-en")
        expected = {"split": "validation", "revision": source.revision}
        assert asked[1] == (source.dataset, config, expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [("de", "got 'de'"), ("de=", "got 'de='"), ("=x", "got '=x'"), ("a=x,a=y", "got 'a=x,a=y'")],
)
def test_an_option_that_pairs_no_names_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"^--columns: expected NAME=THEIRS") as caught:
        hub.parsed("--columns", text)
    assert said in str(caught.value)
    assert hub.parsed("--columns", "de=a.b, en=c") == {"de": "a.b", "en": "c"}
