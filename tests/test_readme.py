"""Every command in the README runs, and every table in it is what the harness prints."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from harness.analysis import report
from tests.commands import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place to work in, with the committed results and the README's own study file."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "results/depth_text", folder / "results/depth_text")
    (code,) = re.findall(r"```python\n# mine.py\n(.*?)```", README, re.DOTALL)
    (folder / "mine.py").write_text(code)
    return folder


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("harness ")])
def test_the_command_runs(command: str, folder: Path) -> None:
    run(folder, *shlex.split(command)[1:])


def test_the_other_commands_are_targets_of_the_makefile_that_ci_runs() -> None:
    others = [c for c in COMMANDS if not c.startswith("harness ")]
    assert others == ["make study", "make test"]
    script = (ROOT / ".ci/run").read_text()
    assert all(command in script for command in others)


def test_the_scheme_table_is_the_catalogue() -> None:
    rows = report.catalogue()
    head = list(rows[0])
    table = report.FORMATS["md"](head, [[str(row[name]) for name in head] for row in rows])
    assert table in README, f"put this table into the README:\n{table}"


def test_the_results_table_is_what_the_committed_rows_give(folder: Path) -> None:
    table, _ = run(folder, "table", "depth_text", "--format", "md")
    assert table in README, f"put this table into the README:\n{table}"


def test_links_to_files_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
