"""Workers: each claims a cell, trains it, tells ledger and tracker, and claims the next."""

import multiprocessing
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from harness.data.ranks import ALONE, Ranks
from harness.data.tasks import data_sha, files
from harness.errors import ConfigError, redacted, surroundings
from harness.sweep.crew import LeaseLost, Order, Parted, heed, lead
from harness.sweep.study import ROOT, execute, shown
from harness.training.config import Config, parse

if TYPE_CHECKING:
    from harness.sweep.ledger import Attempt, Ledger
    from harness.sweep.tracking import Ending, TrackedRun, Tracker

PRELOADED = [  # what every worker imports, loaded once for all of them
    *("torch", "lightning.pytorch", "mlflow", "optuna"),
    *("harness.training.train", "harness.sweep.ledger", "harness.sweep.tracking"),
    "harness.sweep.worker",
]
WAIT_SECONDS = 0.2  # between looks at cells that others are trying
SIGNS = (signal.SIGINT, signal.SIGTERM)


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
    """The signals that a worker obeys, inside of `with`, whose end is to leave if one has come.

    They are noted: a worker asks with `pending` where it can leave, also if its command is gone.
    Inside of `at_once` they raise SystemExit wherever they meet it.
    """

    def __init__(self, obeyed: tuple[signal.Signals, ...]) -> None:
        self.code: int | None = None
        self._obeyed, self._at_once = obeyed, False

    def __enter__(self) -> Self:
        self._before = [
            signal.signal(sign, self._note if sign in self._obeyed else signal.SIG_IGN)
            for sign in SIGNS
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sign, handler in zip(SIGNS, self._before, strict=True):
            signal.signal(sign, handler)
        if error is None and self.code is not None:
            raise SystemExit(self.code)

    def pending(self) -> bool:
        parent = multiprocessing.parent_process()
        if self.code is None and parent and not parent.is_alive():
            self.code = 128 + signal.SIGTERM
        return self.code is not None

    @contextmanager
    def at_once(self, yes: bool = True) -> Iterator[None]:
        """With `yes` False: noted again, in the midst of an outer `at_once`."""
        before, self._at_once = self._at_once, yes
        try:
            self._leave()
            yield
        finally:
            self._at_once = before
        self._leave()

    def _note(self, signum: int, frame: Any) -> None:
        self.code = 128 + signum
        self._leave()

    def _leave(self) -> None:
        if self._at_once and self.code is not None:
            raise SystemExit(self.code)


def work(
    job: Job, obeyed: tuple[signal.Signals, ...] = (signal.SIGTERM,), ranks: Ranks = ALONE
) -> None:
    """Trains cells until all are done; raises SystemExit with 128 + signal when interrupted.

    This is rank 0 of `ranks`, whom the others follow. In a pool only the command obeys SIGINT,
    which a terminal sends to all, and passes on SIGTERM.
    """
    with Interrupts(obeyed) as interrupts:
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
        with interrupts.at_once(False):
            leave = SystemExit(interrupts.code) if interrupts.pending() else None
            heed(ranks, leave or (LeaseLost() if attempt.lost.is_set() else None))
            assert run is not None
            run.log(step, scalars)

    try:
        config = parse(job.configs[attempt.key], str(job.source))
        if config.run_id != attempt.key:
            raise ConfigError(f"{job.source}: changed under its run; give the command again")
        same_corpus(job, config)
        run = tracker.start(config, attempt.number, attempt.token)
        order = Order(job.source, job.code, dict(job.configs[attempt.key]), job.data)
        with interrupts.at_once(ranks.count == 1):  # several leave together, in `log`
            trained = lead(ranks, order, config, log)
        run.keep(trained.curves, trained.translations)
    except LeaseLost:
        assert run is not None
        run.end("KILLED")
        return
    except BaseException as error:
        if isinstance(error, ConfigError | Parted) or surroundings(error):
            ledger.release(attempt)
            raise
        if interrupts.code is None:  # also where what it trains has called exit()
            _crash(job, ledger, tracker, attempt, run, error)
            return
        ledger.release(attempt)  # interrupted, whatever became of that: the cell is free again
        if run:
            run.end("KILLED")
        raise SystemExit(interrupts.code) from None
    record = {**trained.record, "attempts": attempt.attempts, "commit": job.commit}
    if ledger.done(attempt, record, run.run):
        run.end("FINISHED", record)
    else:
        tracker.close(endings(ledger))  # as the one who took it away has ended it


def same_corpus(job: Job, config: Config) -> None:
    """ConfigError if the cell's corpus is no longer the one that the command has read: no result
    on it could be accepted."""
    if data_sha(config.data, job.data) == job.digests[config.run_id]["data_sha"]:
        return
    paths = files(config.data, job.data) or (job.source,)
    newest = shown(max(paths, key=lambda path: path.stat().st_mtime_ns).resolve())
    which = f"{newest}, the newest of {len(paths)} files" if len(paths) > 1 else newest
    raise ConfigError(
        f"{which}: changed since the command began; give the same command again, and it trains on "
        "what is there now"
    )


def _crash(
    job: Job,
    ledger: "Ledger",
    tracker: "Tracker",
    attempt: "Attempt",
    run: "TrackedRun | None",
    error: BaseException,
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
    if not ledger.error(attempt, record, trace):
        tracker.close(endings(ledger))
    elif run:
        run.note("error.txt", trace)
        run.end("FAILED", record)


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
