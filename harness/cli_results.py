"""The commands that read results: tables and figures, without torch, Optuna or MLflow."""

from typing import Annotated

import typer

from harness.errors import ConfigError, MissingRuns
from harness.options import RESULTS, NameOption, OnlyOption, ResultsOption, SetOption, StudyName
from harness.options import plan as named_plan


def table(
    study: StudyName,
    only: OnlyOption = None,
    set_: SetOption = None,
    name: NameOption = "",
    form: Annotated[str, typer.Option("--format", metavar="text|csv|md|tex")] = "text",
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="mean of all runs of a point, as bleu")
    ] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Print one row a point: outcomes, and the mean final loss with its 95 % interval."""
    from harness.analysis import report, statistics
    from harness.errors import did_you_mean
    from harness.results.store import Results

    if form not in report.FORMATS:
        raise ConfigError(f"--format: unknown format '{form}'{did_you_mean(form, report.FORMATS)}")
    plan = named_plan(study, set_, only, name, results)
    at_hand = Results(results, plan)
    found = at_hand.table()
    axes = [*(axis for axis in found.axes if axis != "seed"), *found.tuned]
    metrics = report.metric_columns(found, metric or [])
    points = statistics.points(found, metrics=metrics)
    edges = statistics.edges(found, points)
    typer.echo(report.show(points, axes, form, metrics, edges), nl=False)
    notes = [] if form == "csv" else statistics.at_edges(edges)
    notes += report.unlearned(found) + report.guessed_targets(found, plan.cells)
    for note in [*notes, *at_hand.outdated()]:
        typer.echo(note, err=True)


def plot(
    study: StudyName,
    figure: Annotated[str | None, typer.Argument(metavar="FIGURE")] = None,
    partial: Annotated[bool, typer.Option(help="draw although cells are missing")] = False,
    only: OnlyOption = None,
    set_: SetOption = None,
    name: NameOption = "",
    results: ResultsOption = RESULTS,
) -> None:
    """Redraw the study's figures from its results."""
    from harness.analysis import figures
    from harness.results.store import Results

    plan = named_plan(study, set_, only, name, results)
    wanted = [figures.find(figure)] if figure else plan.figures
    found = Results(results, plan)
    evidence = found.table()
    for note in found.outdated():
        typer.echo(note, err=True)
    if (missing := len(evidence.missing)) and not partial:
        raise MissingRuns(
            f"{plan.name}: {missing} of {missing + len(evidence.runs)} cells have no run; "
            f"make them with '{plan.command}', or draw what is there with --partial"
        )
    for each in wanted:
        typer.echo(figures.draw(each, evidence, found.folder))
