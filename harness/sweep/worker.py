"""Workers: each claims a cell, trains it, tells ledger and tracker, and claims the next.

`supervise` runs them as forkserver processes with the heavy libraries loaded once, and replaces
those that are killed.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from harness.errors import ConfigError, redacted, surroundings
from harness.sweep.study import ROOT, load
from harness.training.config import parse

PRELOADED = ["torch", "lightning.pytorch", "mlflow", "optuna", "harness.sweep.worker"]
POLL_SECONDS = 0.5
WAIT_SECONDS = 1.0  # between looks at cells that others are trying
LEAVE_SECONDS = 30.0  # for a worker to come to its next step and release its cell
DEATHS = 3  # of workers in a row without a new attempt: they cannot work here


@dataclass(frozen=True)
class Job:
    """What a worker needs to find its cells again: all of it text, numbers and paths."""

    study: str  # imported for the schemes that it declares
    name: str
    configs: Mapping[str, Mapping[str, Any]]  # by key, in the order in which they are wanted
    shas: Mapping[str, str]  # of each cell's corpus
    state: Path
    data: Path
    storage: str | None
    commit: str


class LeaseLost(Exception):  # noqa: N818
    """Another has taken the attempt for lost: it must not go on."""


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


def work(job: Job, obeyed: tuple[signal.Signals, ...] = (signal.SIGTERM,)) -> None:
    """Trains cells until all are done; raises SystemExit with 128 + signal when interrupted.

    In a pool only the command obeys SIGINT, which a terminal sends to all, and passes on SIGTERM.
    """
    interrupts = Interrupts(obeyed)
    import torch

    torch.set_num_threads(1)  # processes share cores better than threads
    from harness.sweep.ledger import Ledger
    from harness.sweep.tracking import Tracker

    load(job.study)
    ledger = Ledger(job.name, job.state, job.storage, job.shas)
    tracker = Tracker(job.name, job.state)
    while not interrupts.pending():
        if attempt := ledger.claim(job.configs):
            with ledger.kept(attempt):
                _try(job, ledger, tracker, attempt, interrupts)
        elif ledger.standing().running & job.configs.keys():
            time.sleep(WAIT_SECONDS)  # others are at it; if they are lost, the cell is ours
        else:
            return
    raise SystemExit(interrupts.code)


def _work_in_pool(job: Job) -> None:
    try:
        work(job)
    except Exception as error:
        line = str(error) if isinstance(error, ConfigError) else surroundings(error)
        if line is None:
            raise
        print(f"worker: {redacted(line)}", file=sys.stderr)
        raise SystemExit(1) from None


def _try(job: Job, ledger: Any, tracker: Any, attempt: Any, interrupts: Interrupts) -> None:
    from harness.training.train import train

    run: Any = None

    def log(step: int, scalars: dict[str, float]) -> None:
        if interrupts.pending():
            raise SystemExit(interrupts.code)
        if attempt.lost.is_set():
            raise LeaseLost
        run.log(step, scalars)

    try:
        config = parse(job.configs[attempt.key], job.study)
        if config.run_id != attempt.key:
            raise RuntimeError(f"{job.study} has changed under its run; begin again")
        run = tracker.start(config, attempt.number)
        trained = train(config, job.data, log)
        run.keep(trained.curves)
        record = {**trained.record, "attempts": attempt.attempts, "commit": job.commit}
        kept = ledger.done(attempt, record, run.run)
        run.end("FINISHED" if kept else "KILLED", record if kept else None)
    except LeaseLost:
        run.end("KILLED")
    except Exception as error:  # a crash is recorded with its traceback; the sweep goes on
        record = {
            "outcome": "crashed",
            "reason": type(error).__name__,
            "attempts": attempt.attempts,
            "commit": job.commit,
            "finished": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        ledger.error(attempt, record, redacted(traceback.format_exc()))
        if run:
            run.end("FAILED", record)
    except BaseException:  # interrupted: the cell is free again
        ledger.release(attempt)
        if run:
            run.end("KILLED")
        raise SystemExit(interrupts.code) from None


def supervise(ledger: Any, job: Job, workers: int) -> Generator[Any]:
    """The ledger's standing, again and again until the workers have ended; they end with us.

    A worker that was killed is replaced, as long as new attempts come of it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)

    def start() -> BaseProcess:
        process = context.Process(target=_work_in_pool, args=(job,))
        process.start()
        return process

    processes = [start() for _ in range(workers)]
    deaths, attempts = 0, -1
    try:
        while processes:
            wait([process.sentinel for process in processes], POLL_SECONDS)
            ended = [process for process in processes if not process.is_alive()]
            processes = [process for process in processes if process.is_alive()]
            for _ in (process for process in ended if process.exitcode != 0):
                ledger.recover()
                seen = len(ledger.attempts())
                deaths, attempts = (1 if seen > attempts else deaths + 1), seen
                if deaths <= DEATHS:
                    processes.append(start())
            yield ledger.standing()
    finally:
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + LEAVE_SECONDS
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        ledger.recover()


def endings(attempts: Mapping[int, Any]) -> dict[int, tuple[str, Mapping[str, Any]]]:
    """By number: how the tracker's run of an ended attempt must have ended, and its record."""
    found = {}
    for number, trial in attempts.items():
        if trial.state.is_finished():
            record = trial.user_attrs.get("record", {})
            if trial.state.name == "COMPLETE":
                found[number] = "FINISHED", record
            elif trial.user_attrs.get("ended") == "error":
                found[number] = "FAILED", record
            else:
                found[number] = "KILLED", {}
    return found


def commit() -> str:
    """The repository's commit, with + where files differ from it; empty outside a repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + "+" if head and git("status", "--porcelain") else head
    except FileNotFoundError:
        return ""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
