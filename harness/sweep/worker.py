"""Workers: each claims a cell, trains it, tells ledger and tracker, and claims the next.

Started by `start` as forkserver processes with the heavy libraries loaded once.
"""

import multiprocessing
import os
import signal
import subprocess
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from harness.sweep.study import ROOT, Plan, load

PRELOADED = ["torch", "lightning.pytorch", "mlflow", "optuna", "harness.sweep.worker"]


POLL_SECONDS = 0.5
LEAVE_SECONDS = 20.0  # for a worker to release its cell


@dataclass(frozen=True)
class Job:
    """What a worker needs to find its cells again: all of it text, numbers and paths."""

    study: str
    sets: tuple[str, ...]
    keys: tuple[str, ...]  # in the order in which they are wanted
    shas: Mapping[str, str]  # of each cell's corpus
    state: Path
    data: Path
    storage: str | None
    commit: str


def start(job: Job, workers: int) -> list[BaseProcess]:
    """Worker processes at work; each ends when no cell is free."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes: list[BaseProcess] = [
        context.Process(target=work, args=(job,), daemon=False) for _ in range(workers)
    ]
    for process in processes:
        process.start()
    return processes


def work(job: Job) -> None:
    """Trains cells until none is free. Processes share cores better than threads: one a worker."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal sends it to all; the command passes it on
    from harness.sweep.ledger import Ledger
    from harness.sweep.tracking import Tracker

    plan = load(job.study, job.sets)
    ledger = Ledger(plan.name, job.state, job.storage, job.shas)
    tracker = Tracker(plan.name, job.state)
    while attempt := ledger.claim(job.keys):
        _try(plan, job, ledger, tracker, attempt)


def _try(plan: Plan, job: Job, ledger: Any, tracker: Any, attempt: Any) -> None:
    from harness.training.train import train

    config = plan.by_key[attempt.key].config
    provenance = {"attempts": attempt.attempts, "commit": job.commit}
    run = None
    try:
        run = tracker.start(config, attempt.attempts)
        trained = train(config, job.data, run.log)
        record = {**trained.record, **provenance}
        run.finish(record, trained.curves)
        ledger.done(attempt, record, run.run)
    except Exception as error:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        crash = {"outcome": "crashed", "reason": type(error).__name__, "finished": now}
        ledger.error(attempt, {**crash, **provenance}, traceback.format_exc())
        if run:
            run.end("FAILED", "crashed", type(error).__name__)
    except BaseException:  # interrupted: the cell is free again
        ledger.release(attempt)
        if run:
            run.end("KILLED")
        raise


def _leave(signum: int, frame: Any) -> None:
    raise SystemExit(128 + signum)


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


def supervise(ledger: Any, job: Job, workers: int) -> Iterator[Any]:
    """The ledger's standing, again and again until the workers have ended; they end with us."""
    processes = start(job, workers)
    try:
        while any(process.is_alive() for process in processes):
            wait([process.sentinel for process in processes if process.is_alive()], POLL_SECONDS)
            yield ledger.standing()
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            process.join(LEAVE_SECONDS)
            if process.is_alive():
                process.kill()
