"""Tasks by name: the families they serve, their options, and that none of them needs torch."""

import hashlib
import itertools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from harness.data.arrays import EOS, Arrays, Validation
from harness.data.baselines import baselines
from harness.data.tasks import FAMILIES, TASKS, TaskOptions, data_sha, files, load
from tests import parallel

READ = TypeAdapter(TaskOptions)


def options(name: str, folder: Path) -> Any:
    given = {"name": name}
    if name == "text":
        (folder / "a.txt").write_text("some text to read from " * 40)
        given["path"] = "a.txt"
    if name == "translation":
        parallel.write(folder)
        given |= {"corpus": "toy", "pieces": 80}
    return READ.validate_python(given)


def test_every_task_has_a_name_options_and_families() -> None:
    union, _ = get_args(TaskOptions)
    assert set(TASKS) == set(FAMILIES)
    assert set(TASKS.values()) == set(get_args(union))
    for name, kind in TASKS.items():
        assert get_args(kind.model_fields["name"].annotation) == (name,)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_read_by_its_name_and_serves_each_of_its_families(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    given = options(name, tmp_path)
    assert type(given) is TASKS[name]
    for family in FAMILIES[name]:
        task = load(given, tmp_path, family, 40)
        batch = task.train(0, 0, 60)
        assert len(batch.inputs_BT) == 60 or (name == "translation" and batch.inputs_BT.size <= 60)
        assert batch.inputs_BT.shape == batch.targets_BT.shape == batch.previous_BT.shape
        assert (batch.source_BS is not None) == (family == "encoder_decoder")
        assert task.sha == data_sha(given, tmp_path)  # whatever the family


def test_options_are_strict(tmp_path: Path) -> None:
    for given in (
        {"name": "reverse", "symbols": "16"},
        {"name": "reverse", "symbols": 0},
        {"name": "reverse", "symbol": 16},
        {"name": "text"},
        {"name": "revers"},
    ):
        with pytest.raises(ValidationError):
            READ.validate_python(given)
    assert READ.validate_python({"name": "reverse", "symbols": 16.0}).symbols == 16


def test_tasks_load_and_count_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from harness.data import baselines\n"
        "from harness.data.tasks import TASKS, FAMILIES, data_sha, load\n"
        "for name in ('code_text', 'reverse', 'recall'):\n"
        "    options = TASKS[name](name=name)\n"
        "    task = load(options, Path('.'), FAMILIES[name][0], 12)\n"
        "    task.train(0, 0, 2), data_sha(options, Path('.'))\n"
        "    baselines.baselines(task, 16)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "expected"), [("text", ["a.txt"]), ("translation", ["toy.tsv"]), ("reverse", [])]
)
def test_a_task_names_the_files_that_it_reads(
    name: str, expected: list[str], tmp_path: Path
) -> None:
    assert [p.name for p in files(options(name, tmp_path), tmp_path)] == expected


# This code, before there was a validation of tunings: training, validation and frequencies.
GOLDEN = {
    ("text", "decoder"): "82a349d166d3",
    ("text", "encoder"): "8ef10b6c49be",
    ("reverse", "encoder_decoder"): "6b870f8b8e4e",
    ("reverse", "decoder"): "b3aa96c81c65",
    ("reverse", "encoder"): "a8f0004cd562",
    ("recall", "encoder_decoder"): "5eeb9cdfe631",
    ("recall", "decoder"): "1b2090297f10",
    ("toy", "encoder_decoder"): "2b03101f54fd",
    ("many", "encoder_decoder"): "8a6e0fdb5cc9",
}
SHAPES = {  # further options, train.length and batch
    "text": ({"name": "text", "path": "*.txt"}, 12, 4),
    "reverse": ({"name": "reverse"}, 15, 100),
    "recall": ({"name": "recall"}, 15, 100),
    "toy": ({"name": "translation", "corpus": "toy", "pieces": 80}, 40, 100),
    "many": (
        {
            **{"name": "translation", "corpus": "many", "pieces": 150},
            **{"directions": ("en>*", "de>en"), "low_resource": ("de>en",), "low_pairs": 30},
        },
        *(80, 100),
    ),
}


@pytest.fixture
def corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for seed, (name, letters, size) in enumerate(
        (("a.txt", "abcdefgh", 5000), ("b.txt", "abcdefghij", 777))
    ):
        drawn = np.random.default_rng(seed).choice(list(letters), size)
        (tmp_path / name).write_text("".join(drawn))
    parallel.write(tmp_path)
    parallel.write_many(tmp_path)
    return tmp_path


def digest(batches: list[Arrays]) -> str:
    found = hashlib.sha256()
    for part in itertools.chain(*batches):
        if isinstance(part, np.ndarray):
            found.update(repr(part.shape).encode() + part.astype("<i8").tobytes())
        else:
            found.update(repr(part).encode())
    return found.hexdigest()[:12]


@pytest.mark.parametrize(("name", "family"), GOLDEN)
def test_what_is_reported_and_trained_on_is_what_it_was(
    name: str, family: str, corpora: Path
) -> None:
    given, length, size = SHAPES[name]
    task = load(READ.validate_python(given), corpora, family, length)
    batches = [task.train(0, 0, size), task.train(3, 7, size), *task.valid(size), task.sample()]
    assert digest(batches) == GOLDEN[name, family], (
        "The batches of runs that are committed have changed. Update only together with PROTOCOL."
    )


def sequences(batches: list[Arrays]) -> set[bytes]:
    """What each row holds, padding aside."""
    return {
        b"|".join(row[row > EOS].tobytes() for row in rows)
        for a in batches
        for rows in zip(
            a.previous_BT, a.previous_BT if a.source_BS is None else a.source_BS, strict=True
        )
    }


@pytest.mark.parametrize(("name", "family"), GOLDEN)
def test_a_tuning_validates_on_what_is_neither_reported_nor_trained_on(
    name: str, family: str, corpora: Path
) -> None:
    given, length, size = SHAPES[name]
    options = READ.validate_python(given)
    reported, tuned = (load(options, corpora, family, length, h) for h in get_args(Validation))
    assert tuned.vocabularies == reported.vocabularies
    assert tuned.sha == reported.sha
    held = sequences(tuned.valid(size))
    assert held
    assert held.isdisjoint(sequences(reported.valid(size)))
    assert held.isdisjoint(sequences([tuned.sample()]))  # of all that is trained on
    assert held.isdisjoint(sequences([tuned.train(1, i, size) for i in range(30)]))
    again = load(options, corpora, family, length, "tuning")
    assert digest(tuned.valid(size)) == digest(again.valid(size))
    baseline, reference, _ = baselines(tuned, size)
    assert reference > 0 and 0 < baseline < math.log(tuned.vocabularies[1])
