"""The command that prints translations: from the results, or those of one run from the tracker.

No torch; Optuna and MLflow only with --full.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli_data import DATA
from harness.errors import ConfigError, MissingRuns, did_you_mean
from harness.options import (
    RESULTS,
    STATE,
    NameOption,
    OnlyOption,
    ResultsOption,
    SetOption,
    StateOption,
    StudyName,
)
from harness.options import plan as named_plan

if TYPE_CHECKING:
    from harness.data.translation.translations import Translated
    from harness.results.columns import Row
    from harness.results.store import Results
    from harness.sweep.plan import Plan

    Rows = Mapping[str, Row]  # by run_id, as the translations are
    Pairs = Mapping[str, Sequence[Translated]]


def translations(
    study: StudyName,
    only: OnlyOption = None,
    set_: SetOption = None,
    name: NameOption = "",
    run: Annotated[str, typer.Option("--run", metavar="RUN_ID", help="only this run")] = "",
    full: Annotated[
        bool, typer.Option("--full", help="a run's whole test split, from the tracker")
    ] = False,
    form: Annotated[str, typer.Option("--format", metavar="text|tsv")] = "text",
    state: StateOption = STATE,
    results: ResultsOption = RESULTS,
) -> None:
    """Print test sentences and what the first run of each point made of them, side by side."""
    from harness.results.store import Results

    if form not in FORMATS:
        raise ConfigError(f"--format: unknown format '{form}'{did_you_mean(form, FORMATS)}")
    at_hand = Results(results, named_plan(study, set_, only, name, results, state))
    rows = _translated(at_hand)
    if run and run not in rows:
        raise ConfigError(f"--run {run}: no such run has translated{did_you_mean(run, rows)}")
    found = _all(at_hand, rows, run, state) if full else _kept(at_hand, rows, run)
    typer.echo(FORMATS[form](at_hand.plan, rows, found), nl=False)


def _translated(at_hand: "Results") -> "Rows":
    """Rows of the selected points that have translated a test split; an error if there are none."""
    from harness.data.translation.options import Translation
    from harness.results.translations import scored
    from harness.sweep.study import shown

    plan = at_hand.plan
    if not any(isinstance(c.config.data, Translation) for c in (*plan.cells, *plan.waiting)):
        where = f"{shown(plan.source)}: data.name"
        raise ConfigError(f"{where}: no cell of the study translates; name a study that does")
    points = {plan.point(cell) for cell in plan.selected}
    rows = at_hand.rows()
    there = [c.key for c in plan.cells if plan.point(c) in points and c.key in rows]
    if not there:
        raise at_hand.no_runs()
    found = {key: rows[key] for key in there if scored(rows[key])}
    if not found:
        raise MissingRuns(
            f"{at_hand.folder / plan.file}: none of {len(there)} runs has translated a test split: "
            "they diverged, or their corpus has none; name others with --only"
        )
    return found


def _kept(at_hand: "Results", rows: "Rows", run: str) -> "Pairs":
    """What the results have of these rows' runs, or of one of them."""
    from harness.results.translations import translated

    first = translated(at_hand.plan, rows)
    if run and run not in first:
        raise MissingRuns(
            f"--run {run}: the results have translations of the first run of each point "
            f"({', '.join(first)}); add --full for those of the tracker"
        )
    there, own = at_hand.translations.rows(), at_hand.own(rows.values())
    wanted = [run] if run else first
    found = {key: there[key].pairs for key in wanted if key in there and key in own}
    lacking = ", ".join(key for key in wanted if key not in found)
    remedy = f"take them from the tracker with '{at_hand.plan.invocation.command('collect')}'"
    line = f"{at_hand.translations.path}: no translations of {lacking}; {remedy}"
    if not found:
        raise MissingRuns(line)
    if lacking:
        typer.echo(line, err=True)
    return found


def _all(at_hand: "Results", rows: "Rows", run: str, state: Path) -> "Pairs":
    """What the tracker has of one run."""
    from harness.artifacts import all_translations
    from harness.session import Places

    selected = [cell.key for cell in at_hand.plan.selected if cell.key in rows]
    wanted = [run] if run else selected
    if len(wanted) != 1:
        raise ConfigError(f"--full: of which run? add --run ({', '.join(wanted or rows)})")
    places = Places(state, at_hand.root, DATA)
    return {key: all_translations(at_hand.plan, rows[key], places) for key in wanted}


def _text(plan: "Plan", rows: "Rows", found: "Pairs") -> str:
    """A paragraph per pair: its source, its reference, and a line per run."""
    names = [*(axis for axis in plan.axes if axis != "seed" and _varies(plan, axis)), *plan.tuned]
    label = {key: " ".join(f"{path}={rows[key][path]}" for path in names) for key in found}
    together: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for key, pairs in found.items():
        for direction, source, reference, hypothesis in pairs:
            lines = together.setdefault((direction, source, reference), [])
            lines.append((label[key] or "hypothesis", hypothesis))
    paragraphs = []
    for (direction, *pair), lines in together.items():
        both = zip((f"{direction} source", "reference"), pair, strict=True)
        paragraphs.append([*both, *lines])
    width = max(len(head) for each in paragraphs for head, _ in each)
    return "\n".join(
        "".join(f"{head:{width}}  {text}".rstrip() + "\n" for head, text in each)
        for each in paragraphs
    )


def _tsv(plan: "Plan", rows: "Rows", found: "Pairs") -> str:
    """A line per translation: the columns of its text first, then those of its run."""
    from harness.data.translation.translations import HEADER

    names = [*dict.fromkeys(("run_id", "scheme", *plan.axes, *plan.tuned))]
    lines = [[*HEADER, *names]]
    for key, pairs in found.items():
        lines += [[*pair, *(rows[key][each] for each in names)] for pair in pairs]
    return "".join("\t".join(line) + "\n" for line in lines)


def _varies(plan: "Plan", axis: str) -> bool:
    return len({str(cell.config.at(axis)) for cell in plan.cells}) > 1


FORMATS: dict[str, Callable[["Plan", "Rows", "Pairs"], str]] = {"text": _text, "tsv": _tsv}
