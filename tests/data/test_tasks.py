"""Tasks by name: the families they serve, their options, and that none of them needs torch."""

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

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
