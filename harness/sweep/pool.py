"""A pool of workers: forkserver processes with the heavy libraries loaded once. Those that die are
replaced for as long as something comes of it."""

import logging
import multiprocessing
import signal
import time
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, NamedTuple

from harness.errors import ConfigError, WorkersFailed, redacted, surroundings
from harness.sweep.lease import belongs
from harness.sweep.worker import PRELOADED, SIGNS, Job, work

if TYPE_CHECKING:
    from harness.sweep.ledger import Ledger, Standing

POLL_SECONDS = 0.5
LOOK_SECONDS = 10.0  # between looks at the leases of others
LEAVE_SECONDS = 30.0  # for a worker to release its cell
DEATHS = 3  # of every worker without an attempt that came to an end: they cannot work here


class _Worker(NamedTuple):
    process: BaseProcess
    words: Connection

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def last_words(self) -> tuple[str, bool] | None:
        """Of a dead worker: the line in which it said why, and whether the user's input is why."""
        with suppress(EOFError, OSError):  # most have nothing to say, or were killed saying it
            if self.words.poll():
                line, ours = self.words.recv()
                return str(line), bool(ours)
        return None


def warm_up() -> None:
    """Begins loading the heavy libraries, while the command does other things."""
    _context()
    forkserver.ensure_running()


def supervise(ledger: "Ledger", job: Job, workers: int) -> Generator["Standing"]:
    """The ledger's standing, again and again until the workers have ended; they end with us.

    A worker that died is replaced, as long as attempts of ours come to an end. Then, or when it
    says that the input is wrong, none is replaced any more, and what is left of the job when all
    have ended is a WorkersFailed or a ConfigError with a worker's last words.
    """
    pool: list[_Worker] = []
    ours: set[int] = set()

    def start(count: int) -> None:
        for _ in range(count):
            with _deferred():  # a signal must not come between a start and its entry
                pool.append(_start(job))
                ours.add(pool[-1].pid)

    fruitless, fruit, looked = 0, 0, time.monotonic()
    failure: Exception | None = None
    try:
        start(workers)
        while pool:
            wait([each.process.sentinel for each in pool], POLL_SECONDS)
            dead = [each for each in pool if not each.process.is_alive()]
            pool[:] = [each for each in pool if each not in dead]
            killed = [each for each in dead if each.process.exitcode]
            if killed:
                # Whoever could exit was not killed.
                ledger.recover({each.pid for each in killed if (each.process.exitcode or 0) > 0})
                come = _ended(ledger, ours)
                fruitless, fruit = (0 if come > fruit else fruitless + len(killed)), come
                if not isinstance(failure, ConfigError):
                    failure = _failure(killed) or (failure if fruitless else None)
                if fruitless < DEATHS * workers and not isinstance(failure, ConfigError):
                    start(len(killed))
            elif time.monotonic() - looked > LOOK_SECONDS:
                ledger.recover()
                looked = time.monotonic()
            standing = ledger.standing()
            yield standing
        if failure and job.configs.keys() - standing.accepted.keys() - standing.crashed.keys():
            raise failure
    finally:
        with undisturbed():
            _end(pool)
            ledger.recover({each.pid for each in pool})


def _start(job: Job) -> _Worker:
    hears, says = multiprocessing.Pipe(duplex=False)
    process = _context().Process(target=_work_in_pool, args=(job, says))
    process.start()
    says.close()
    return _Worker(process, hears)


def _work_in_pool(job: Job, says: Connection) -> None:
    """A worker whose command obeys SIGINT, which a terminal sends to all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("harness").setLevel(logging.ERROR)  # the command has warned
    try:
        work(job)
    except Exception as error:
        ours = isinstance(error, ConfigError)
        line = str(error) if ours else surroundings(error)
        if line is None:
            raise
        with suppress(BrokenPipeError):  # the command is gone
            says.send((redacted(line), ours))
        raise SystemExit(1) from None


def _failure(killed: Collection[_Worker]) -> Exception | None:
    """What the last of them said, the user's input first."""
    said = [words for each in killed if (words := each.last_words())]
    if wrong := [line for line, ours in said if ours]:
        return ConfigError(wrong[-1])
    return WorkersFailed(said[-1][0]) if said else None


def _ended(ledger: "Ledger", pids: Collection[int]) -> int:
    """How many attempts of these processes have ended, other than by being released."""
    from harness.sweep.ledger import how_ended

    return sum(
        trial.state.is_finished()
        and how_ended(trial) != "released"
        and belongs(trial.user_attrs["lease"], pids)
        for trial in ledger.attempts()
    )


def _end(pool: Collection[_Worker]) -> None:
    for each in pool:
        each.process.terminate()
    deadline = time.monotonic() + LEAVE_SECONDS
    for each in pool:
        each.process.join(max(0.0, deadline - time.monotonic()))
        if each.process.is_alive():
            each.process.kill()
            each.process.join()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait: what is told to stop is stopping, and is to come to its end."""
    before = [signal.signal(sign, signal.SIG_IGN) for sign in SIGNS]
    try:
        yield
    finally:
        for sign, handler in zip(SIGNS, before, strict=True):
            signal.signal(sign, handler)


@contextmanager
def _deferred() -> Iterator[None]:
    """Signals wait until the block has ended."""
    forkserver.ensure_running()  # which would inherit that, and pass it on
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
