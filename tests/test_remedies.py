"""A command that a message advises does what is needed, whatever the command before was given."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.commands import run
from tests.test_session import call, write

FOLDERS = ("--results", "r x", "--state", "s x")
VARIANT = ("--set", "model.norm=rmsnorm", "--set", "seed=0")
NAMED = ("--set", "seed=7", "--name", "seventh")


def advised(said: str) -> list[list[str]]:
    """Commands in single quotes, as a shell reads them."""
    found = [shlex.split(command) for command in re.findall(r"'(harness .*?)'(?=[ ,;\n]|$)", said)]
    assert found, said
    return found


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with states whose databases have been made."""
    folder = tmp_path_factory.mktemp("blank")
    write(folder)
    call(folder, "recover", "./one.py")
    shutil.copytree(folder / ".harness", folder / "s x")
    return folder


@pytest.fixture
def place(blank: Path, tmp_path: Path) -> Path:
    shutil.copytree(blank, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("table", ()),
        ("plot", VARIANT),
        ("table", NAMED),
        ("plot", ("--set", "scheme=rezero")),
        ("table", ("--only", "seed=1")),
    ],
)
def test_what_has_no_runs_yet_is_made_by_the_command_that_is_named(
    word: str, words: tuple[str, ...], place: Path
) -> None:
    asked = (word, "./one.py", *words, *FOLDERS[:2])
    said = call(place, *asked, code=2)
    ((_, *remedy),) = advised(said)
    run(place, *remedy)
    assert call(place, *asked)
    assert [p.name for p in place.iterdir() if p.name.startswith("results")] == []


@pytest.mark.parametrize("words", [VARIANT, NAMED], ids=" ".join)
def test_a_table_without_runs_names_the_variants_that_have_some(
    words: tuple[str, ...], place: Path
) -> None:
    call(place, "run", "./one.py", *words, *FOLDERS)
    said = call(place, "table", "./one.py", *FOLDERS[:2], code=2)
    _, (_, *variant) = advised(said)
    assert variant[0] == "table"
    assert "rezero" in run(place, *variant)[0]


def test_what_a_selection_left_out_is_made_by_the_command_that_is_named(place: Path) -> None:
    call(place, "run", "./one.py", "--set", "scheme=rezero", *FOLDERS)
    said = call(place, "plot", "./one.py", *FOLDERS[:2], code=2)
    assert said.startswith("one: 2 of 4 cells have no run; make them with ")
    ((_, *remedy),) = advised(said)
    run(place, *remedy)
    assert call(place, "plot", "./one.py", *FOLDERS[:2]) == "r x/one/depth_curve.svg\n"


def test_what_verify_finds_is_mended_by_the_command_that_is_named(place: Path) -> None:
    call(place, "run", "./one.py", *VARIANT, *FOLDERS)
    (folder,) = (place / "r x").iterdir()
    for name in ("runs.csv", "curves.csv.gz"):
        (folder / name).unlink()
        said = call(place, "verify", "./one.py", *VARIANT, *FOLDERS, code=1)
        _, *remedy = advised(said)[0]
        run(place, *remedy)
        assert call(place, "verify", "./one.py", *VARIANT, *FOLDERS).startswith("0 differences")


def test_what_another_definition_made_is_measured_anew_by_the_command_that_is_named(
    place: Path,
) -> None:
    words = ("--set", "scheme=rezero", *FOLDERS)
    call(place, "run", "./one.py", *words)
    path = place / "r x/one/runs.csv"
    head, *lines = path.read_text().splitlines()
    at = head.split(",").index("wiring_sha")
    others = [
        ",".join([*cells[:at], "0" * 12, *cells[at + 1 :]])
        for cells in (line.split(",") for line in lines)
    ]
    path.write_text("\n".join([head, *others]) + "\n")
    for word in ("status", "run"):
        options = words if word == "status" else (*words, "--dry-run")
        said = call(place, word, "./one.py", *options)
        ((_, *remedy),) = advised(said)
    shutil.rmtree(place / "s x")  # the ledger has the runs of today's definition
    run(place, *remedy)
    assert path.read_text().splitlines()[1:] != others
    assert "another definition" not in call(place, "status", "./one.py", *words)
