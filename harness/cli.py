"""The command line: wires commands to rooms. A command imports the libraries that it needs itself.

Results go to stdout, progress to stderr. Exit codes: 0 the plan is done, 1 crashed cells, 2 the
user's input is wrong, 130 interrupted, 143 terminated.
"""

import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import cli_data, cli_schemes, environment
from harness.cli_data import DATA, DataOption
from harness.cli_results import plot, table
from harness.cli_schemes import JsonOption
from harness.cli_translations import translations
from harness.errors import (
    ConfigError,
    Disagreement,
    MissingRuns,
    Terminated,
    WorkersFailed,
    redacted,
    surroundings,
)
from harness.options import (
    RESULTS,
    STATE,
    NameOption,
    OnlyOption,
    PreferOption,
    ResultsOption,
    ReuseOption,
    SetOption,
    StateOption,
    StudyName,
    given_folders,
    plan,
)

if TYPE_CHECKING:
    from harness.session import Session

app = typer.Typer(
    help="Residual schemes and norm placements against depth: sweep, compare, redraw.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command()
def run(
    study: StudyName,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; default: cores")] = None,
    only: OnlyOption = None,
    set_: SetOption = None,
    name: NameOption = "",
    retry: Annotated[bool, typer.Option("--retry", help="try crashed cells again")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would run")] = False,
    prefer: PreferOption = None,
    reuse: ReuseOption = None,
    state: StateOption = STATE,
    results: ResultsOption = RESULTS,
    data: DataOption = DATA,
) -> None:
    """Train what is missing; write rows, curves and figures."""
    from harness.commands import run_study

    if "TORCHELASTIC_RUN_ID" in os.environ:
        from harness.sweep.plan import Invocation

        folders = given_folders(results, state, data)
        asked = Invocation(study, tuple(set_ or ()), tuple(only or ()), name, folders)
        raise ConfigError(f"run: torchrun starts workers; give it '{asked.command('worker')}'")
    session = _session(study, set_, name, state, results, data, only, reuse)
    raise typer.Exit(run_study(session, workers, retry, dry_run, _preferred(prefer)))


@app.command()
def worker(
    study: StudyName,
    only: OnlyOption = None,
    set_: SetOption = None,
    name: NameOption = "",
    state: StateOption = STATE,
    results: ResultsOption = RESULTS,
    data: DataOption = DATA,
) -> None:
    """Work on a study beside others; `collect` writes the results.

    Several processes train each cell together under `torchrun --nproc-per-node N -m harness`.
    """
    from harness.commands import run_worker

    raise typer.Exit(run_worker(lambda: _session(study, set_, name, state, results, data, only)))


@app.command()
def collect(
    study: StudyName,
    set_: SetOption = None,
    name: NameOption = "",
    prefer: PreferOption = None,
    state: StateOption = STATE,
    results: ResultsOption = RESULTS,
    data: DataOption = DATA,
) -> None:
    """Write rows, curves and figures from ledger and tracker, after workers."""
    from harness.commands import collect as collect_study

    session = _session(study, set_, name, state, results, data)
    raise typer.Exit(collect_study(session, _preferred(prefer)))


@app.command()
def recover(
    study: StudyName,
    set_: SetOption = None,
    name: NameOption = "",
    state: StateOption = STATE,
    results: ResultsOption = RESULTS,
    data: DataOption = DATA,
) -> None:
    """Close the attempts of workers that are gone, as `run` does when it starts."""
    from harness.commands import recover as recover_study

    closed = recover_study(_session(study, set_, name, state, results, data))
    typer.echo(f"{closed} attempts closed")


@app.command()
def verify(
    study: StudyName,
    set_: SetOption = None,
    name: NameOption = "",
    state: StateOption = STATE,
    results: ResultsOption = RESULTS,
    data: DataOption = DATA,
) -> None:
    """Check that ledger, tracker and results tell the same story."""
    from harness.checks import verify as verify_study

    session = _session(study, set_, name, state, results, data)
    problems = verify_study(session)
    for problem in problems:
        typer.echo(problem)
    wasted = session.ledger.wasted() if session.has_ledger else 0
    typer.echo(f"{len(problems)} differences, {wasted} wasted attempts", err=True)
    raise typer.Exit(1 if problems else 0)


@app.command()
def status(
    study: StudyName,
    only: OnlyOption = None,
    set_: SetOption = None,
    name: NameOption = "",
    as_json: JsonOption = False,
    state: StateOption = STATE,
    results: ResultsOption = RESULTS,
    data: DataOption = DATA,
) -> None:
    """Count the study's cells by what has become of them."""
    from harness.commands import study_status

    counts = study_status(_session(study, set_, name, state, results, data, only))
    if as_json:
        typer.echo(json.dumps(counts))
    else:
        for count, value in counts.items():
            typer.echo(f"{count:13} {value}")


@app.command()
def ui(
    state: StateOption = STATE,
    port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
) -> None:
    """Open MLflow's page on this state, on loopback."""
    from harness.sweep.tracking import serve

    raise typer.Exit(serve(state, port))


app.command()(translations)
for command in (table, plot, cli_schemes.schemes, cli_schemes.show, cli_schemes.check):
    app.command()(command)
app.add_typer(cli_data.app, name="data")


def main() -> None:
    """The entry point: what goes wrong for the user is one line and exit code 2."""
    gc.set_threshold(50_000, 20, 20)  # plans of 10,000 cells are many objects and no garbage
    signal.signal(signal.SIGTERM, _terminated)
    # Also where a shell had SIGINT ignored, as for its background jobs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = typer.main.get_command(app)
    try:
        environment.settle()
        code: Any = command.main(prog_name="harness", standalone_mode=False)
    except (ConfigError, MissingRuns) as error:
        code = _say(str(error), 2)
    except (Disagreement, WorkersFailed) as error:
        code = _say(str(error), 1)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "harness"
        code = _say(f"{where}: {error.format_message()} See '{where} --help'.", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    except Exception as error:
        line = surroundings(error)
        if line is None:
            raise
        code = _say(line, 1)
    sys.exit(code)


def _say(line: str, code: int) -> int:
    typer.echo(redacted(line.replace("\n", " ")), err=True)
    return code


def _session(
    study: str,
    sets: list[str] | None,
    name: str,
    state: Path,
    results: Path,
    data: Path,
    only: list[str] | None = None,
    reuse: list[str] | None = None,
) -> "Session":
    from harness.session import Places, Session

    named = plan(study, sets, only, name, results, state, data)
    session = Session(named, Places(state, results, data), reuse or [])
    for line in session.results.outdated(session.digests):
        typer.echo(line, err=True)
    return session


def _preferred(prefer: str | None) -> str | None:
    if prefer not in (None, "results", "ledger"):
        raise ConfigError(f"--prefer: unknown value '{prefer}' (known: ledger, results)")
    return prefer


def _terminated(signum: int, frame: Any) -> None:
    raise Terminated(128 + signum)
