"""What the commands on a study do, each given a Session."""

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from harness.errors import redacted
from harness.session import Session
from harness.sweep.lease import SECONDS
from harness.sweep.plan import Cell, Plan

if TYPE_CHECKING:
    from harness.data.ranks import Ranks

FAILED = ("stalled", "diverged", "crashed")


def run_study(
    session: Session, workers: int | None, retry: bool, dry_run: bool, prefer: str | None
) -> int:
    """Runs a study's missing cells and writes all that follows from them; the exit code."""
    for note in session.check():
        print(note, file=sys.stderr)
    if dry_run:
        return _say_what_would_run(session, retry)

    from harness.sweep.pool import supervise, undisturbed, warm_up
    from harness.sweep.worker import cores

    if session.wanted():
        warm_up()
    if retry:
        session.ledger.retry()
    session.recover()
    asked: list[Cell] = []
    try:
        # Once for the tuning, and again for what it has decided: values beyond its grid, and cells.
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
            _write_artifacts(session)
    session.draw()
    return _conclude(session, wanted)


def _say_what_would_run(session: Session, retry: bool) -> int:
    standing = session.look() if session.has_ledger else None
    for cell in (wanted := session.wanted(None if retry else standing)):
        print(cell.key, *_named(session.plan, cell))
    for cell in (waiting := session.plan.selected_waiting):
        print("when tuned  ", *_named(session.plan, cell)[: len(session.plan.axes)])
    all_cells = sum(results.plan.size for results, _ in session.parts)
    print(f"{len(wanted) + len(waiting)} of {all_cells} cells would run", file=sys.stderr)
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
    code = 0
    if ranks.rank:
        follow(ranks)
    else:
        code = _lead(opened(), ranks)
        ranks.told(None)
    ranks.part()
    return code


def _lead(session: Session, ranks: "Ranks") -> int:
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
    return 1 if _say_what_crashed(session, f"'{session.plan.command} --retry'") or wanted else 0


def collect(session: Session, prefer: str | None) -> int:
    """Writes rows, curves and figures from ledger and tracker, and closes what dead workers left
    open in the two."""
    if session.has_ledger:
        session.recover()
    session.merge(prefer)
    _write_artifacts(session)
    session.draw()
    return _conclude(session, [], f"'{session.plan.command} --retry'")


def recover(session: Session) -> int:
    """Closes the attempts of workers that are gone; how many. Whether a worker is gone that is not
    in sight, on another host, shows within minutes: if not, it renews its lease."""
    closed = session.recover()
    if elsewhere := session.ledger.unsure():
        hosts = ", ".join(sorted({lease["host"] for lease in elsewhere}))
        words = f"{len(elsewhere)} attempts are open out of sight (on {hosts})"
        print(f"{words}: watching them for at most {SECONDS:.0f} seconds", file=sys.stderr)
    while session.ledger.unsure():
        time.sleep(1.0)
        closed += session.recover()
    return closed


def _write_artifacts(session: Session) -> None:
    from harness.artifacts import write_curves, write_translations

    for what, write in (("curves", write_curves), ("translations", write_translations)):
        if lost := write(session):
            named = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if lost[5:] else "")
            print(f"the tracker has no {what} of {named}: they stay empty", file=sys.stderr)


def study_status(session: Session) -> dict[str, Any]:
    """Counts of a study's selected cells, including those of its tuning."""
    running: set[str] = set()
    accepted: Mapping[str, Any] = {}
    if session.has_ledger:
        standing = session.look()
        running, accepted = standing.running, standing.accepted
    rows = session.selected_rows
    outcomes = Counter(r["outcome"] for r in rows.values())
    running = (running & {cell.key for cell in session.selected}) - rows.keys()
    return {
        "study": session.plan.name,
        "cells": session.size,
        **{name: outcomes[name] for name in ("trained", *FAILED)},
        "running": len(running),
        "missing": session.size - len(rows) - len(running),
        "retired": session.results.retired(),
        "imported": sum(k not in accepted for k, r in rows.items() if r["outcome"] != "crashed"),
        "seconds_left": _seconds_left(session, running),
    }


def _seconds_left(session: Session, running: Set[str] = frozenset()) -> float | None:
    """Seconds of training that one worker has left of the selected cells that are missing and not
    running, by what finished runs took; None before any."""
    rows = {**session.trials, **session.rows}
    taken = [
        (c.cost, float(rows[c.key]["seconds"]))
        for c in session.cells
        if c.key in rows and rows[c.key].get("seconds")
    ]
    left = [c for c in session.selected if c.key not in rows and c.key not in running]
    left += session.plan.selected_waiting
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
        rows = self.session.selected_rows
        outcomes = Counter(r["outcome"] for r in rows.values())
        left = _seconds_left(self.session)
        words = [f"{len(rows)}/{self.session.size} cells"]
        words += [f"{outcomes[name]} {name}" for name in FAILED if outcomes[name]]
        words += [] if left is None else [f"{left / self.processes / 60:.1f} minutes left"]
        said = ", ".join(words)
        self.bar.update(self.task, total=self.session.size, completed=len(rows), description=said)
        if said != self.shown and not self.live:
            print(f"{self.session.plan.name}: {said}", file=sys.stderr, flush=True)
        self.shown = said


def _conclude(session: Session, wanted: list[Cell], again: str = "--retry") -> int:
    rows, crashed = session.selected_rows, _say_what_crashed(session, again)
    where = f"{session.plan.name}: {len(rows)}/{session.size} cells"
    print(f"{where} in {session.results.folder}", file=sys.stderr)
    if session.moved:
        print(
            f"{session.plan.name}: {session.moved} rows moved to retired.csv: the study no longer "
            "has their values",
            file=sys.stderr,
        )
    if waiting := len(session.plan.selected_waiting):
        print(f"{waiting} cells wait for the tuning of their points", file=sys.stderr)
    unfinished = [cell for cell in wanted if cell.key not in rows]
    if unfinished:
        remedy = f"continue with '{session.plan.command}'"
        print(f"{len(unfinished)} cells are unfinished; {remedy}", file=sys.stderr)
    return 1 if crashed or unfinished else 0


def _say_what_crashed(session: Session, again: str) -> bool:
    crashes = session.ledger.standing().crashed
    crashed = [r for r in session.selected_rows.values() if r["outcome"] == "crashed"]
    for r in crashed:
        last = crashes.get(r["run_id"], {}).get("error", "").strip().split("\n")[-1]
        words = f"crashed: {r['run_id']} ({last or r['reason']}); try again with {again}"
        print(redacted(words), file=sys.stderr)
    return bool(crashed)
