"""Workers: each claims a cell, trains it, tells ledger and tracker, and claims the next.

`supervise` runs them as forkserver processes with the heavy libraries loaded once, and replaces
those that are killed.
"""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.ranks import ALONE, Ranks
from harness.errors import ConfigError, redacted, surroundings
from harness.sweep.crew import LeaseLost, Order, Parted, heed, lead
from harness.sweep.study import ROOT, execute
from harness.training.config import parse

if TYPE_CHECKING:
    from harness.sweep.ledger import Attempt, Ledger, Standing
    from harness.sweep.tracking import Ending, TrackedRun, Tracker

PRELOADED = ["torch", "lightning.pytorch", "mlflow", "optuna", "harness.sweep.worker"]
POLL_SECONDS = 0.5
WAIT_SECONDS = 0.2  # between looks at cells that others are trying
LEAVE_SECONDS = 30.0  # for a worker to come to its next step and release its cell
DEATHS = 3  # of every worker without a new attempt: they cannot work here


@dataclass(frozen=True)
class Job:
    """What a worker needs to find its cells again: all of it text, numbers and paths."""

    source: Path  # of the study
    code: str  # that declares it, executed for its schemes
    name: str
    configs: Mapping[str, Mapping[str, Any]]  # by key, in the order in which they are wanted
    digests: Mapping[str, Mapping[str, str]]  # of each cell's corpus and scheme
    state: Path
    data: Path
    storage: str | None
    commit: str


class Interrupts:
    """Signals, noted and obeyed at the next step; a worker also leaves when its command is gone."""

    def __init__(self, obeyed: tuple[signal.Signals, ...]) -> None:
        self.code: int | None = None
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, self._note if sign in obeyed else signal.SIG_IGN)

    def pending(self) -> bool:
        parent = multiprocessing.parent_process()
        if self.code is None and parent and not parent.is_alive():
            self.code = 128 + signal.SIGTERM
        return self.code is not None

    def _note(self, signum: int, frame: Any) -> None:
        self.code = 128 + signum


def work(
    job: Job, obeyed: tuple[signal.Signals, ...] = (signal.SIGTERM,), ranks: Ranks = ALONE
) -> None:
    """Trains cells until all are done; raises SystemExit with 128 + signal when interrupted.

    This is rank 0 of `ranks`, whom the others follow. In a pool only the command obeys SIGINT,
    which a terminal sends to all, and passes on SIGTERM.
    """
    interrupts = Interrupts(obeyed)
    import torch

    torch.set_num_threads(1)  # processes share cores better than threads
    from harness.sweep.ledger import Ledger
    from harness.sweep.tracking import Tracker

    execute(job.source, job.code)
    ledger = Ledger(job.name, job.state, job.storage, job.digests)
    tracker = Tracker(job.name, job.state)
    waited = False
    while not interrupts.pending():
        if attempt := ledger.claim(job.configs):
            waited = False
            with ledger.kept(attempt):
                _try(job, ledger, tracker, attempt, interrupts, ranks)
        elif ledger.standing().running & job.configs.keys():
            waited = True
            time.sleep(WAIT_SECONDS)  # others are at it; if they are lost, the cell is ours
        elif waited:
            waited = False  # what others were at may have come free since: one more look
        else:
            return
    raise SystemExit(interrupts.code)


def _work_in_pool(job: Job) -> None:
    logging.getLogger("harness").setLevel(logging.ERROR)  # the command has warned
    try:
        work(job)
    except Exception as error:
        line = str(error) if isinstance(error, ConfigError) else surroundings(error)
        if line is None:
            raise
        print(f"worker: {redacted(line)}", file=sys.stderr)
        raise SystemExit(1) from None


def _try(
    job: Job,
    ledger: "Ledger",
    tracker: "Tracker",
    attempt: "Attempt",
    interrupts: Interrupts,
    ranks: Ranks,
) -> None:
    """One attempt. What goes wrong in training is the cell's crash; what goes wrong with the stores
    is not: the cell is released, or, once its record is written, completed by `recover`."""
    run: TrackedRun | None = None

    def log(step: int, scalars: dict[str, float]) -> None:
        leave = SystemExit(interrupts.code) if interrupts.pending() else None
        heed(ranks, leave or (LeaseLost() if attempt.lost.is_set() else None))
        assert run is not None
        run.log(step, scalars)

    try:
        config = parse(job.configs[attempt.key], str(job.source))
        if config.run_id != attempt.key:
            raise ConfigError(f"{job.source}: changed under its run; give the command again")
        run = tracker.start(config, attempt.number, attempt.token)
        order = Order(job.source, job.code, dict(job.configs[attempt.key]), job.data)
        trained = lead(ranks, order, config, log)
        run.keep(trained.curves)
    except LeaseLost:
        assert run is not None
        run.end("KILLED")
        return
    except Exception as error:
        if isinstance(error, ConfigError | Parted) or surroundings(error):
            ledger.release(attempt)
            raise
        _crash(job, ledger, attempt, run, error)
        return
    except BaseException:  # interrupted: the cell is free again
        ledger.release(attempt)
        if run:
            run.end("KILLED")
        raise SystemExit(interrupts.code) from None
    record = {**trained.record, "attempts": attempt.attempts, "commit": job.commit}
    if ledger.done(attempt, record, run.run):
        run.end("FINISHED", record)


def _crash(
    job: Job, ledger: "Ledger", attempt: "Attempt", run: "TrackedRun | None", error: Exception
) -> None:
    """Records a crash with its traceback; the sweep goes on."""
    from harness.training.train import now

    record = {
        "outcome": "crashed",
        "reason": type(error).__name__,
        "attempts": attempt.attempts,
        "commit": job.commit,
        "finished": now(),
    }
    trace = redacted("".join(traceback.format_exception(error)))
    if ledger.error(attempt, record, trace) and run:
        run.note("error.txt", trace)
        run.end("FAILED", record)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait: what is told to stop is stopping, and is to come to its end."""
    signs = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(sign, signal.SIG_IGN) for sign in signs]
    try:
        yield
    finally:
        for sign, handler in zip(signs, before, strict=True):
            signal.signal(sign, handler)


def warm_up() -> None:
    """Begins loading the heavy libraries, while the command does other things."""
    _context()
    forkserver.ensure_running()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def supervise(ledger: "Ledger", job: Job, workers: int) -> Generator["Standing"]:
    """The ledger's standing, again and again until the workers have ended; they end with us.

    A worker that was killed is replaced, as long as new attempts come of it.
    """
    context = _context()

    def start(count: int) -> list[BaseProcess]:
        started: list[BaseProcess] = [
            context.Process(target=_work_in_pool, args=(job,)) for _ in range(count)
        ]
        for process in started:
            process.start()
        return started

    processes = start(workers)
    fruitless, attempts = 0, -1
    try:
        while processes:
            wait([process.sentinel for process in processes], POLL_SECONDS)
            dead = [process for process in processes if not process.is_alive()]
            processes = [process for process in processes if process.is_alive()]
            killed = sum(process.exitcode != 0 for process in dead)
            if killed:
                ledger.recover()
                seen = len(ledger.attempts())
                fruitless, attempts = (0 if seen > attempts else fruitless + killed), seen
                if fruitless < DEATHS * workers:
                    processes += start(killed)
            yield ledger.standing()
    finally:
        with undisturbed():
            for process in processes:
                process.terminate()
            deadline = time.monotonic() + LEAVE_SECONDS
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
                if process.is_alive():
                    process.kill()
                    process.join()
            ledger.recover()


def endings(ledger: "Ledger") -> "dict[str, Ending]":
    """By token: how the tracker's run of an ended attempt must end, and with which record."""
    from harness.sweep.ledger import how_ended

    found: dict[str, Ending] = {}
    for trial in ledger.attempts():
        token = trial.user_attrs["claim"]["token"]
        if trial.state.name == "COMPLETE":
            found[token] = "FINISHED", trial.user_attrs["result"]["record"]
        elif trial.state.is_finished() and how_ended(trial) == "error":
            found[token] = "FAILED", trial.user_attrs["end"]["record"]
        elif trial.state.is_finished():
            found[token] = "KILLED", {}
    return found


def commit() -> str:
    """The repository's commit, with + where files differ from it; empty outside a repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    if not (ROOT / ".git").exists():  # git would find that of a folder above
        return ""
    try:
        head = git("rev-parse", "--short=12", "HEAD")
        changed = git("status", "--porcelain", "--", "harness", "studies", "configs")
        return head + "+" if head and changed else head
    except FileNotFoundError:
        return ""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
