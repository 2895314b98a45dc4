"""What the commands on a study do, each given a Session."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from harness.analysis.records import Row, differences
from harness.errors import redacted
from harness.session import Session, disagreeing, merged
from harness.sweep.lease import holds
from harness.sweep.study import Cell, Plan

if TYPE_CHECKING:
    from harness.sweep.ledger import Standing

FAILED = ("stalled", "diverged", "crashed")


def run_study(
    session: Session, workers: int | None, retry: bool, dry_run: bool, prefer: str | None
) -> int:
    """Runs a study's missing cells and writes all that follows from them; the exit code."""
    session.check()
    if dry_run:
        return _say_what_would_run(session, retry)

    from harness.sweep.worker import cores, supervise, undisturbed, warm_up

    if session.wanted():
        warm_up()
    if retry:
        session.ledger.retry()
    session.recover()
    wanted = session.wanted(session.merge(prefer))
    try:
        if wanted:
            processes = min(workers or cores(), len(wanted))
            standings = supervise(session.ledger, session.job(wanted), processes)
            with Bar(session, wanted, processes) as bar, closing(standings):
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
            session.write_curves()
    session.draw()
    return _conclude(session, wanted)


def _say_what_would_run(session: Session, retry: bool) -> int:
    plan, standing = session.plan, None
    if session.has_ledger:
        standing = session.ledger.standing()
        session.rows = merged(plan, session.rows, standing, "results")
    for cell in (wanted := session.wanted(None if retry else standing)):
        print(cell.key, *(f"{a}={v}" for a, v in zip(plan.axes, cell.values, strict=True)))
    print(f"{len(wanted)} of {len(plan.cells)} cells would run", file=sys.stderr)
    return 0


def run_worker(session: Session) -> int:
    """Works on a study beside others, and leaves results to `collect`."""
    from harness.sweep.worker import work

    session.check()
    session.recover()
    wanted = session.wanted(session.ledger.standing())
    work(session.job(wanted), (signal.SIGINT, signal.SIGTERM))
    return 0


def collect(session: Session, prefer: str | None) -> int:
    """Writes rows, curves and figures from ledger and tracker."""
    session.merge(prefer)
    session.write_curves()
    session.draw()
    return _conclude(session, [])


def verify(session: Session) -> list[str]:
    """What ledger, tracker and results do not agree on, a line each."""
    if not session.has_ledger:
        return []
    standing = session.ledger.standing()
    return [*_rows_against_ledger(session, standing), *_tracker_against_ledger(session)]


def _rows_against_ledger(session: Session, standing: "Standing") -> Iterator[str]:
    plan, rows, curves = session.plan, session.rows, session.results.curves.runs()
    for cell in plan.cells:
        key, mend = cell.key, f"mend it with '{plan.named('collect')}'"
        if key in standing.accepted and key in rows and rows[key]["outcome"] != "crashed":
            if key not in curves:
                yield f"{key}: no curves; {mend}"
        elif key in standing.accepted or key in standing.crashed.keys() - rows.keys():
            yield f"{key}: ended in the ledger, no such row; {mend}"
    for key, mine in disagreeing(plan, rows, standing).items():
        for name, (there, here) in differences(rows[key], mine).items():
            yield f"{key}: {name} is {there} in runs.csv, {here} in the ledger"


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
    """Counts of a study's cells."""
    plan, rows = session.plan, session.rows
    running: set[str] = set()
    accepted: Mapping[str, Any] = {}
    if session.has_ledger:
        standing = session.ledger.standing()
        running, accepted = standing.running & plan.by_key.keys(), standing.accepted
        rows = merged(plan, rows, standing, "results")
    outcomes = Counter(r["outcome"] for r in rows.values())
    running -= rows.keys()
    begun = rows.keys() | running
    missing = [cell for cell in plan.cells if cell.key not in begun]
    return {
        "study": plan.name,
        "cells": len(plan.cells),
        **{name: outcomes[name] for name in ("trained", *FAILED)},
        "running": len(running),
        "missing": len(missing),
        "retired": session.results.retired(),
        "imported": sum(k not in accepted for k, r in rows.items() if r["outcome"] != "crashed"),
        "seconds_left": _seconds_left(plan, rows, missing),
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


def _seconds_left(plan: Plan, rows: Mapping[str, Row], missing: list[Cell]) -> float | None:
    """Seconds of training that one worker has left, by what finished runs took; None before any."""
    done = [
        (plan.by_key[key].cost, float(r["seconds"])) for key, r in rows.items() if r.get("seconds")
    ]
    if not done:
        return None if missing else 0.0
    rate = sum(seconds for _, seconds in done) / sum(cost for cost, _ in done)
    return round(rate * sum(cell.cost for cell in missing), 1)


class Bar:
    """Progress on stderr: cells done, failed, time left; line by line without a terminal."""

    def __init__(self, session: Session, wanted: list[Cell], processes: int) -> None:
        self.session, self.wanted, self.processes = session, wanted, processes
        self.shown = ""
        console = Console(stderr=True)
        self.live = console.is_terminal
        columns = (TextColumn(session.plan.name), BarColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=console, disable=not self.live)
        self.task = self.bar.add_task("", total=len(session.plan.cells))
        self.show()

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self) -> None:
        plan, rows = self.session.plan, self.session.rows
        failed = sum(r["outcome"] in FAILED for r in rows.values())
        left = _seconds_left(plan, rows, [c for c in self.wanted if c.key not in rows])
        words = f"{len(rows)}/{len(plan.cells)} cells, {failed} failed"
        words += "" if left is None else f", {left / self.processes / 60:.1f} minutes left"
        self.bar.update(self.task, completed=len(rows), description=words)
        if words != self.shown and not self.live:
            print(f"{plan.name}: {words}", file=sys.stderr, flush=True)
        self.shown = words


def _conclude(session: Session, wanted: list[Cell]) -> int:
    rows, crashes = session.rows, session.ledger.standing().crashed
    crashed = [r for r in rows.values() if r["outcome"] == "crashed"]
    for r in crashed:
        last = crashes.get(r["run_id"], {}).get("error", "").strip().split("\n")[-1]
        words = f"crashed: {r['run_id']} ({last or r['reason']}); try again with --retry"
        print(redacted(words), file=sys.stderr)
    where = f"{session.plan.name}: {len(rows)}/{len(session.plan.cells)} cells"
    print(f"{where} in {session.results.folder}", file=sys.stderr)
    unfinished = [cell for cell in wanted if cell.key not in rows]
    if unfinished:
        again = f"continue with '{session.plan.command}'"
        print(f"{len(unfinished)} cells are unfinished; {again}", file=sys.stderr)
    return 1 if crashed or unfinished else 0
