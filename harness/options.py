"""Options that the commands on a study share, each defined once, and the plan that they make."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli_data import DATA

if TYPE_CHECKING:
    from harness.sweep.plan import Plan

StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="a name in studies/, or a path")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=V[,V]", help="values of an axis, or of another field"),
]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="AXIS=V[,V]", help="only cells with these")
]
NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="of the variant that --set makes")
]
ReuseOption = Annotated[
    list[str] | None,
    typer.Option("--reuse", metavar="STUDY|all", help="take over equal cells of another study"),
]
StateOption = Annotated[Path, typer.Option("--state", help="ledger, tracker, artifacts")]
ResultsOption = Annotated[Path, typer.Option("--results", help="runs.csv, curves and figures")]
STATE, RESULTS = Path(".harness"), Path("results")
PreferOption = Annotated[
    str | None, typer.Option("--prefer", metavar="results|ledger", help="which of two is right")
]


def plan(
    study: str,
    sets: list[str] | None,
    only: list[str] | None,
    name: str,
    results: Path,
    state: Path = STATE,
    data: Path = DATA,
) -> "Plan":
    """The study's plan as a command line names it, so that messages can repeat the command."""
    from harness.sweep.study import load

    return load(study, sets or [], only or [], name, given_folders(results, state, data))


def given_folders(results: Path, state: Path, data: Path) -> dict[str, str]:
    """The folders by option that are not the default."""
    usual = {"state": STATE, "results": RESULTS, "data": Path(os.environ.get("HARNESS_DATA", DATA))}
    given = {"state": state, "results": results, "data": data}
    return {option: str(path) for option, path in given.items() if path != usual[option]}
