"""Who may import whom (design, section 1): read from the sources, and seen in fresh processes."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "harness").rglob("*.py"))

ROOMS = ["schemes", "model", "data", "training", "sweep", "results", "analysis"]  # as data flows
FREE = {"harness", "harness.database", "harness.errors", "harness.fields"}  # for all to import
# These import what they like, and no room imports them.
TOP = {
    *(
        "harness.checks",
        "harness.cli",
        "harness.cli_data",
        "harness.cli_results",
        "harness.cli_schemes",
        "harness.cli_translations",
    ),
    *("harness.artifacts", "harness.merging"),
    *("harness.commands", "harness.options", "harness.session", "harness.signature"),
    *("harness.environment", "harness.__main__"),
}

# Where a third party may be imported: rooms, or single files.
CONTAINED = {
    "torch": {"model", "data", "training", "session", "signature", "cli_schemes", "sweep/worker"},
    "lightning": {"training", "data"},
    "optuna": {"sweep/ledger"},
    "sqlalchemy": {"database"},
    "mlflow": {"sweep/tracking"},
    "ray": {"sweep/cluster"},
    "tokenizers": {"data/translation/pieces"},
    "langcodes": {"data/translation/languages"},
    "sacrebleu": {"data/translation/scores"},
    "matplotlib": {"analysis"},
    "typer": {"cli", "cli_data", "cli_results", "cli_schemes", "cli_translations", "options"},
    "datasets": {"data/corpora/hub"},
    "huggingface_hub": {"data/corpora/hub"},
}


def place(file: Path) -> str:
    """'training/config' for harness/training/config.py."""
    return file.relative_to(ROOT / "harness").with_suffix("").as_posix()


def module(file: Path) -> str:
    return ".".join(["harness", *place(file).split("/")]).removesuffix(".__init__")


KNOWN = {module(file) for file in FILES}


def imports(tree: ast.AST, own: str, package: bool) -> Iterator[str]:
    """Every module that a source imports, anywhere in it; 'from a import b' may mean a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = own.split(".")
                above = parts[: len(parts) - node.level + package]
                base = ".".join([*above, *([base] if base else [])])
            inner = {f"{base}.{alias.name}" for alias in node.names} & KNOWN
            yield from inner or {base}


def imports_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return set(imports(tree, module(file), file.name == "__init__.py"))


def may_import(importer: str, imported: str) -> bool:
    """Both in harness: from a room to itself or to one before it in the flow of data."""
    if importer in TOP or imported in FREE:
        return True
    if imported in TOP or importer in FREE:
        return False
    return ROOMS.index(imported.split(".")[1]) <= ROOMS.index(importer.split(".")[1])


def test_the_rooms_are_those_of_the_design() -> None:
    folders = {p.name for p in (ROOT / "harness").iterdir() if (p / "__init__.py").exists()}
    assert folders == set(ROOMS)
    assert {module(p) for p in FILES if p.parent.name == "harness"} == FREE | TOP


@pytest.mark.parametrize("file", FILES, ids=place)
def test_imports_point_only_to_earlier_rooms(file: Path) -> None:
    own = {name for name in imports_of(file) if name.split(".")[0] == "harness"}
    assert {name for name in own if not may_import(module(file), name)} == set()


@pytest.mark.parametrize("library", CONTAINED)
def test_a_third_party_stays_where_it_belongs(library: str) -> None:
    users = {place(f) for f in FILES if library in {n.split(".")[0] for n in imports_of(f)}}
    allowed = CONTAINED[library]
    assert {u for u in users if u not in allowed and u.split("/")[0] not in allowed} == set()


def test_the_reader_of_imports_sees_every_form() -> None:
    source = (
        "import torch.nn as nn\n"
        "from harness import training\n"
        "from harness.sweep import study, Study\n"
        "def f():\n    import mlflow\n    from . import ledger\n    from ..training import config\n"
    )
    found = set(imports(ast.parse(source), "harness.sweep.worker", package=False))
    assert found == {
        *("torch.nn", "harness.training", "harness.sweep.study", "mlflow"),
        *("harness.sweep.ledger", "harness.training.config"),
    }
    assert not may_import("harness.model.layers", "harness.training.config")
    assert not may_import("harness.schemes.wiring", "harness.commands")
    assert not may_import("harness.results.store", "harness.analysis.report")
    assert may_import("harness.analysis.report", "harness.schemes.registry")


@pytest.mark.parametrize("file", FILES, ids=place)
def test_a_file_has_fewer_than_300_lines_and_a_noun_for_a_name(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) < 300
    assert file.stem not in {"utils", "util", "helpers", "helper", "common", "base", "misc"}
    assert file.parent.name not in {"utils", "helpers", "common", "base", "misc"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_at_most_ten_files(room: str) -> None:
    files = [f for f in FILES if f.parent.name == room and f.name != "__init__.py"]
    assert 1 <= len(files) <= 10


SHOW = "import sys, {name}; print(*(n for n in {heavy} if n in sys.modules))"


@pytest.mark.parametrize(
    "name",
    [
        *("harness.schemes", "harness.training.config", "harness.training.curves"),
        *("harness.sweep.study", "harness.analysis.figures", "harness.results.store"),
        *("harness.analysis.report", "harness.cli"),
        *("harness.data.corpora.help", "harness.data.corpora.hub", "harness.data.corpora.listing"),
    ],
)
def test_what_only_reads_results_loads_no_heavy_library(name: str) -> None:
    heavy = ("torch", "lightning", "optuna", "mlflow", "ray", "datasets")
    program = SHOW.format(name=name, heavy=heavy)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == []


def test_a_heavy_library_would_be_seen() -> None:
    program = SHOW.format(name="optuna", heavy=("optuna", "mlflow"))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["optuna"]
