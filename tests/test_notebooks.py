"""The notebook runs from its first cell to its last, and says what it said when committed."""

import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its libraries speak of their own future
    from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def said(notebook: Any) -> list[str]:
    """The text of every table and value; figures are read elsewhere."""
    return [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" not in output.get("data", {}) and "data" in output
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_and_says_what_is_committed(path: Path) -> None:
    committed = nbformat.read(path, as_version=4)
    again = nbformat.read(path, as_version=4)
    NotebookClient(again, timeout=300, resources={"metadata": {"path": path.parent}}).execute()
    assert said(again) == said(committed)
    assert said(committed)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_defines_nothing_that_another_could_want(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert not any(word in cell.source for cell in cells for word in ("def ", "class ", "lambda"))
    assert all(cell.outputs for cell in cells[1:])


def test_there_is_a_notebook() -> None:
    assert [path.name for path in NOTEBOOKS] == ["depth.ipynb"]
