"""A wheel alone, in an environment of its own and in an empty folder, knows what a clone knows."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from harness.sweep import worker

ROOT = Path(__file__).parents[1]
SOURCES = ("harness", "studies", "configs", "results/paper")
SHORT = ("smoke", "--set", "scheme=post_norm", "--set", "model.depth=2", "--set", "seed=0")


def python(*words: str | Path, cwd: Path) -> None:
    """`python WORDS`, which is to end well."""
    subprocess.run([sys.executable, *words], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is built, offline, from a copy: a build leaves files in its folder."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name)
    python("-m", "pip", "wheel", "--no-build-isolation", "--no-deps", ".", cwd=copy)
    (built,) = copy.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and with the other libraries of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Adds the folder, but reads no .pth file there: not that of an editable install.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    here = ("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index")
    python("-m", "pip", *here, wheel, cwd=folder)
    return folder / "bin"


def said(command: Path, *words: str, cwd: Path) -> str:
    """Stdout of a command that is to end well, and that knows no clone."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [command, *words], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wheel_runs_tables_and_plots_smoke_in_an_empty_folder(
    installed: Path, tmp_path: Path
) -> None:
    program = "import harness, harness.sweep.study as s; print(harness.__file__, s.ROOT)"
    package, root = map(Path, said(installed / "python", "-c", program, cwd=tmp_path).split())
    assert package.is_relative_to(installed.parent)
    assert root == package.parent / "_data"
    harness = installed / "harness"
    said(harness, "run", *SHORT, "--workers", "1", cwd=tmp_path)
    assert "post_norm" in said(harness, "table", *SHORT, cwd=tmp_path)
    figures = said(harness, "plot", *SHORT, cwd=tmp_path).split()
    assert figures and all((tmp_path / figure).is_file() for figure in figures)
    assert (tmp_path / "results" / "smoke" / "runs.csv").is_file()


def test_a_wheel_holds_every_module_study_config_and_number_of_the_paper(wheel: Path) -> None:
    files = [p.relative_to(ROOT) for p in (ROOT / "harness").rglob("*.py")]
    data = {"studies": "*.py", "configs": "*.toml", "results/paper": "*.csv"}
    for folder, pattern in data.items():
        files += [Path("harness/_data", folder, p.name) for p in (ROOT / folder).glob(pattern)]
    missing = {*map(Path.as_posix, files)} - {*zipfile.ZipFile(wheel).namelist()}
    assert not missing, f"name their packages in pyproject.toml: {sorted(missing)}"


def test_a_commit_of_a_folder_above_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment often lies in a repository of something else."""
    for words in (
        ("init", "--quiet"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--allow-empty", "-qm", "theirs"),
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (below := tmp_path / "site-packages").mkdir()
    monkeypatch.setattr(worker, "ROOT", below)
    assert worker.commit() == ""
    monkeypatch.setattr(worker, "ROOT", tmp_path)
    assert len(worker.commit()) == 12
