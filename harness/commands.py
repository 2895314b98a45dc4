"""What the commands on a study do, each given a Session."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from harness.analysis.records import differences
from harness.errors import redacted
from harness.session import Session, disagreeing
from harness.sweep.lease import holds
from harness.sweep.plan import Cell, Plan

if TYPE_CHECKING:
    from harness.data.ranks import Ranks
    from harness.sweep.ledger import Standing

FAILED = ("stalled", "diverged", "crashed")


def run_study(
    session: Session, workers: int | None, retry: bool, dry_run: bool, prefer: str | None
) -> int:
    """Runs a study's missing cells and writes all that follows from them; the exit code."""
    for note in session.check():
        print(note, file=sys.stderr)
    if dry_run:
        return _say_what_would_run(session, retry)

    from harness.sweep.worker import cores, supervise, undisturbed, warm_up

    if session.wanted():
        warm_up()
    if retry:
        session.ledger.retry()
    session.recover()
    asked: list[Cell] = []
    try:
        # Once for the tuning, and again for the cells that it has decided.
        while wanted := session.wanted(session.merge(prefer)):
            if asked and {c.key for c in wanted} & {c.key for c in asked}:
                break  # no worker could finish these
            asked = wanted
            processes = min(workers or cores(), len(wanted))
            standings = supervise(session.ledger, session.job(wanted), processes)
            with Bar(session, processes) as bar, closing(standings):
                seen = 0
                for standing in standings:
                    if (ended := len(standing.accepted) + len(standing.crashed)) != seen:
                        seen = ended
                        session.merge(prefer)
                        bar.show()
    finally:
        with undisturbed():
            session.recover()
            session.merge(prefer)
            _write_curves(session)
    session.draw()
    return _conclude(session, wanted)


def _say_what_would_run(session: Session, retry: bool) -> int:
    standing = session.look() if session.has_ledger else None
    for cell in (wanted := session.wanted(None if retry else standing)):
        print(cell.key, *_named(session.plan, cell))
    for cell in (waiting := [cell for cell in session.plan.waiting if cell.chosen]):
        print("when tuned  ", *_named(session.plan, cell)[: len(session.plan.axes)])
    would, all_cells = len(wanted) + len(waiting), session.size
    print(f"{would} of {all_cells} cells would run", file=sys.stderr)
    return 0


def _named(plan: Plan, cell: Cell) -> list[str]:
    """A cell's values by path, the tuned ones last."""
    axes = [f"{axis}={value}" for axis, value in zip(plan.axes, cell.values, strict=True)]
    return axes + [f"{path}={cell.config.at(path)}" for path in plan.tuned]


def run_worker(opened: Callable[[], Session]) -> int:
    """Works on a study beside others, and leaves results to `collect`. Of the processes of one
    torchrun only the first opens the study; the others follow it."""
    from harness.data.ranks import join
    from harness.sweep.crew import follow

    ranks = join()
    if ranks.rank:
        follow(ranks)
    else:
        _lead(opened(), ranks)
        ranks.told(None)
    ranks.part()
    return 0


def _lead(session: Session, ranks: "Ranks") -> None:
    from harness.sweep.worker import work

    for note in session.check(ranks.count):
        print(note, file=sys.stderr)
    session.recover()
    asked: list[Cell] = []
    while wanted := session.wanted(session.look()):
        if asked == wanted:
            break
        asked = wanted
        work(session.job(wanted), (signal.SIGINT, signal.SIGTERM), ranks)


def collect(session: Session, prefer: str | None) -> int:
    """Writes rows, curves and figures from ledger and tracker."""
    session.merge(prefer)
    _write_curves(session)
    session.draw()
    return _conclude(session, [])


def _write_curves(session: Session) -> None:
    if lost := session.write_curves():
        named = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if lost[5:] else "")
        print(f"the tracker has no curves of {named}: they stay empty", file=sys.stderr)


def verify(session: Session) -> list[str]:
    """What ledger, tracker and results do not agree on, a line each."""
    if not session.has_ledger:
        return []
    standing = session.ledger.standing()
    return [*_rows_against_ledger(session, standing), *_tracker_against_ledger(session)]


def _rows_against_ledger(session: Session, standing: "Standing") -> Iterator[str]:
    curves, mend = session.results.curves.runs(), session.plan.named("collect")
    for results, rows in session.parts:
        plan = results.plan
        for key in plan.by_key:
            if key in standing.accepted and key in rows and rows[key]["outcome"] != "crashed":
                if key not in curves and results is session.results:
                    kept = session.tracker.curves(standing.accepted[key]["run"])
                    how = f"mend it with '{mend}'" if kept else "the tracker has lost them"
                    yield f"{key}: no curves; {how}"
            elif key in standing.accepted or key in standing.crashed.keys() - rows.keys():
                yield f"{key}: ended in the ledger, no such row; mend it with '{mend}'"
        for key, mine in disagreeing(plan, rows, standing).items():
            for name, (there, here) in differences(rows[key], mine).items():
                yield f"{key}: {name} is {there} in {plan.file}, {here} in the ledger"


def _tracker_against_ledger(session: Session) -> Iterator[str]:
    from harness.sweep.worker import endings

    ended = endings(session.ledger)
    tracked = {run.data.tags.get("token"): run for run in session.tracker.runs()}
    for trial in session.ledger.attempts():
        token, name = trial.user_attrs["claim"]["token"], f"attempt {trial.number}"
        run = tracked.get(token)
        if token not in ended:
            if not holds(trial.user_attrs["lease"]):
                yield f"{name}: left open; mend it with '{session.plan.named('recover')}'"
        elif run is None:
            if ended[token][0] == "FINISHED":  # others may have ended before they were tracked
                yield f"{name}: done, and unknown to the tracker"
        else:
            status, record = ended[token]
            expected = [status, record.get("outcome"), record.get("reason")]
            found = [run.info.status, *(run.data.tags.get(n) for n in ("outcome", "reason"))]
            if expected != found:
                yield f"{name}: {expected} in the ledger, {found} in the tracker"


def study_status(session: Session) -> dict[str, Any]:
    """Counts of a study's cells, those of its tuning included."""
    running: set[str] = set()
    accepted: Mapping[str, Any] = {}
    if session.has_ledger:
        standing = session.look()
        running, accepted = standing.running, standing.accepted
    rows = session.all_rows
    outcomes = Counter(r["outcome"] for r in rows.values())
    running = (running & {cell.key for cell in session.cells}) - rows.keys()
    return {
        "study": session.plan.name,
        "cells": session.size,
        **{name: outcomes[name] for name in ("trained", *FAILED)},
        "running": len(running),
        "missing": session.size - len(rows) - len(running),
        "retired": session.results.retired(),
        "imported": sum(k not in accepted for k, r in rows.items() if r["outcome"] != "crashed"),
        "seconds_left": _seconds_left(session, lambda cell: cell.key not in running),
    }


def serve(state: Path, port: int) -> int:
    """MLflow's page on this state's store, or the address of the server that tracks."""
    from harness.sweep.tracking import tracking_uri

    uri = tracking_uri(state)
    if uri.startswith("http"):
        print(f"the tracker is a server of its own: {redacted(uri)}")
        return 0
    command = [sys.executable, "-m", "mlflow", "server"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # By environment: a command line, with its password, is for all to see.
    environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    return subprocess.run(command, env=environment, check=False).returncode


def _seconds_left(session: Session, counts: Callable[[Cell], bool]) -> float | None:
    """Seconds of training that one worker has left of the missing cells that count, by what
    finished runs took; None before any."""
    rows = session.all_rows
    taken = [
        (c.cost, float(rows[c.key]["seconds"]))
        for c in session.cells
        if c.key in rows and rows[c.key].get("seconds")
    ]
    left = [cell for cell in session.cells if cell.key not in rows and counts(cell)]
    left += [cell for cell in session.plan.waiting if counts(cell)]
    if not taken:
        return None if left else 0.0
    rate = sum(seconds for _, seconds in taken) / sum(cost for cost, _ in taken)
    return round(rate * sum(cell.cost for cell in left), 1)


class Bar:
    """Progress on stderr: cells done, what failed, time left; line by line without a terminal."""

    def __init__(self, session: Session, processes: int) -> None:
        self.session, self.processes = session, processes
        self.shown = ""
        console = Console(stderr=True)
        self.live = console.is_terminal
        columns = (TextColumn(session.plan.name), BarColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=console, disable=not self.live)
        self.task = self.bar.add_task("", total=session.size)
        self.show()

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self) -> None:
        rows = self.session.all_rows
        outcomes = Counter(r["outcome"] for r in rows.values())
        left = _seconds_left(self.session, lambda cell: cell.chosen)
        words = [f"{len(rows)}/{self.session.size} cells"]
        words += [f"{outcomes[name]} {name}" for name in FAILED if outcomes[name]]
        words += [] if left is None else [f"{left / self.processes / 60:.1f} minutes left"]
        said = ", ".join(words)
        self.bar.update(self.task, completed=len(rows), description=said)
        if said != self.shown and not self.live:
            print(f"{self.session.plan.name}: {said}", file=sys.stderr, flush=True)
        self.shown = said


def _conclude(session: Session, wanted: list[Cell]) -> int:
    rows, crashes = session.all_rows, session.ledger.standing().crashed
    crashed = [r for r in rows.values() if r["outcome"] == "crashed"]
    for r in crashed:
        last = crashes.get(r["run_id"], {}).get("error", "").strip().split("\n")[-1]
        words = f"crashed: {r['run_id']} ({last or r['reason']}); try again with --retry"
        print(redacted(words), file=sys.stderr)
    where = f"{session.plan.name}: {len(rows)}/{session.size} cells"
    print(f"{where} in {session.results.folder}", file=sys.stderr)
    if waiting := sum(cell.chosen for cell in session.plan.waiting):
        print(f"{waiting} cells wait for the tuning of their points", file=sys.stderr)
    unfinished = [cell for cell in wanted if cell.key not in rows]
    if unfinished:
        again = f"continue with '{session.plan.command}'"
        print(f"{len(unfinished)} cells are unfinished; {again}", file=sys.stderr)
    return 1 if crashed or unfinished else 0
