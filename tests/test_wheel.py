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

ROOT = Path(__file__).parents[1]
SOURCES = ("harness", "studies", "configs", "results/paper")
SHORT = ("smoke", "--set", "scheme=post_norm", "--set", "model.depth=2", "--set", "seed=0")


def python(*words: str | Path, cwd: Path) -> None:
    """`python WORDS`, which is to end well."""
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(
        [sys.executable, *words], env=environment, cwd=cwd, check=True, capture_output=True
    )


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
    harness = installed / "harness"
    said(harness, "run", *SHORT, "--workers", "1", cwd=tmp_path)
    assert "post_norm" in said(harness, "table", *SHORT, cwd=tmp_path)
    figures = said(harness, "plot", *SHORT, cwd=tmp_path).split()
    assert figures and all((tmp_path / figure).is_file() for figure in figures)
    program = (
        "import harness; from harness.analysis import evidence\n"
        "print(harness.__file__, len(evidence('smoke').runs))"
    )
    package, runs = said(installed / "python", "-c", program, cwd=tmp_path).split()
    assert Path(package).is_relative_to(installed.parent)
    assert runs == "1"


def test_a_wheel_holds_every_module_study_config_and_number_of_the_paper(wheel: Path) -> None:
    files = [p.relative_to(ROOT) for p in (ROOT / "harness").rglob("*.py")]
    data = {"studies": "*.py", "configs": "*.toml", "results/paper": "*.csv"}
    for folder, pattern in data.items():
        files += [Path("harness/_data", folder, p.name) for p in (ROOT / folder).glob(pattern)]
    missing = {*map(Path.as_posix, files)} - {*zipfile.ZipFile(wheel).namelist()}
    assert not missing, f"name their packages in pyproject.toml: {sorted(missing)}"
