"""What the commands on a study do, each given a Session."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from harness.analysis.records import Row, differences, row
from harness.errors import ConfigError
from harness.session import Session, merged
from harness.sweep.lease import holds
from harness.sweep.study import Cell, Plan, shown

FAILED = ("stalled", "diverged", "crashed")


def run_study(
    session: Session, workers: int | None, retry: bool, dry_run: bool, prefer: str | None
) -> int:
    """Runs a study's missing cells and writes all that follows from them; the exit code."""
    plan = session.plan
    _check_precision(plan)
    if dry_run:
        wanted = session.wanted()
        for cell in wanted:
            print(cell.key, *(f"{a}={v}" for a, v in zip(plan.axes, cell.values, strict=True)))
        print(f"{len(wanted)} of {len(plan.cells)} cells would run", file=sys.stderr)
        return 0

    from harness.sweep.worker import cores, supervise

    if retry:
        session.ledger.retry()
    session.recover()
    wanted = session.wanted(session.merge(prefer))
    try:
        if wanted:
            processes = min(workers or cores(), len(wanted))
            standings = supervise(session.ledger, session.job(wanted), processes)
            with Bar(plan, session.rows, wanted) as bar, closing(standings):
                seen = None
                for standing in standings:
                    if (ended := standing.accepted.keys() | standing.crashed.keys()) != seen:
                        seen = ended
                        session.merge(prefer)
                        bar(session.rows)
    finally:
        session.recover()
        session.merge(prefer)
        session.write_curves()
    session.draw()
    return _conclude(session, wanted)


def run_worker(session: Session) -> int:
    """Works on a study beside others, and leaves results to `collect`."""
    from harness.sweep.worker import work

    _check_precision(session.plan)
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
    from harness.sweep.worker import endings

    plan, ledger = session.plan, session.ledger
    problems = []
    accepted = ledger.standing().accepted
    curves = session.results.curves.runs()
    for cell in plan.cells:
        if cell.key not in accepted:
            continue
        if cell.key not in session.rows:
            problems.append(
                f"{cell.key}: done in the ledger, no row; harness collect {session.study}"
            )
            continue
        mine = row(plan, cell, accepted[cell.key])
        for name, (there, here) in differences(session.rows[cell.key], mine).items():
            problems.append(f"{cell.key}: {name} is {there} in runs.csv, {here} in the ledger")
        if cell.key not in curves:
            problems.append(f"{cell.key}: no curves; harness collect {session.study}")
    attempts = ledger.attempts()
    ended = endings(attempts)
    tracked = {int(run.data.tags["attempt"]): run for run in session.tracker.runs()}
    for number, trial in attempts.items():
        key, run = trial.user_attrs["cell"], tracked.pop(number, None)
        if number not in ended:
            if not holds(trial.user_attrs["lease"]):
                problems.append(
                    f"{key}: attempt {number} was left open; harness recover {session.study}"
                )
            continue
        status, record = ended[number]
        if run is None:
            if status == "FINISHED":  # others may have ended before the tracker knew of them
                problems.append(f"{key}: attempt {number} is {status}, unknown to the tracker")
            continue
        expected = [status, record.get("outcome"), record.get("reason")]
        found = [run.info.status, *(run.data.tags.get(name) for name in ("outcome", "reason"))]
        if expected != found:
            problems.append(f"{key}: attempt {number} is {expected}, {found} in the tracker")
    problems += [f"the tracker's run of attempt {n} is not in the ledger" for n in sorted(tracked)]
    return problems


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
    missing = [cell for cell in plan.cells if cell.key not in rows.keys() | running]
    return {
        "study": plan.name,
        "cells": len(plan.cells),
        **{name: outcomes[name] for name in ("trained", *FAILED)},
        "running": len(running),
        "missing": len(missing),
        "retired": len(session.results.retired()),
        "imported": sum(k not in accepted for k, r in rows.items() if r["outcome"] != "crashed"),
        "seconds_left": _seconds_left(plan, rows, missing),
    }


def serve(state: Path, port: int) -> int:
    from harness.sweep.tracking import tracking_uri

    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri(state)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    return subprocess.run(command, check=False).returncode


def _check_precision(plan: Plan) -> None:
    if any(cell.config.train.precision == "16-mixed" for cell in plan.cells):
        import torch

        if not torch.cuda.is_available():
            where = f"{shown(plan.source)}: train.precision"
            raise ConfigError(f"{where}: 16-mixed needs a GPU, got none; use bf16-mixed")


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

    def __init__(self, plan: Plan, rows: Mapping[str, Row], wanted: list[Cell]) -> None:
        self.plan, self.wanted, self.shown = plan, wanted, ""
        console = Console(stderr=True)
        self.live = console.is_terminal
        columns = (TextColumn(plan.name), BarColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=console, disable=not self.live)
        self.task = self.bar.add_task("", total=len(plan.cells))
        self(rows)

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, rows: Mapping[str, Row]) -> None:
        failed = sum(r["outcome"] in FAILED for r in rows.values())
        left = _seconds_left(self.plan, rows, [c for c in self.wanted if c.key not in rows])
        words = f"{len(rows)}/{len(self.plan.cells)} cells, {failed} failed"
        words += "" if left is None else f", {left / 60:.1f} min of training left"
        self.bar.update(self.task, completed=len(rows), description=words)
        if words != self.shown and not self.live:
            print(f"{self.plan.name}: {words}", file=sys.stderr, flush=True)
        self.shown = words


def _conclude(session: Session, wanted: list[Cell]) -> int:
    rows = session.rows
    crashed = [r for r in rows.values() if r["outcome"] == "crashed"]
    for r in crashed:
        print(f"crashed: {r['run_id']} ({r['reason']}); try again with --retry", file=sys.stderr)
    unfinished = [cell for cell in wanted if cell.key not in rows]
    if unfinished:
        again = f"continue with 'harness run {session.study}'"
        print(f"{len(unfinished)} cells are unfinished; {again}", file=sys.stderr)
    return 1 if crashed or unfinished else 0
