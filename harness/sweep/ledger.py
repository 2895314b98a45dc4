"""The ledger of attempts, on Optuna: one trial an attempt, claimed by one worker, ended once.

The plan lives in memory; Optuna only records. A cell's accepted result is its COMPLETE trial with
the lowest number. Of several attempts at one cell that begin at once, the lowest goes on.
"""

import math
import os
import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import event

optuna.logging.set_verbosity(optuna.logging.WARNING)

BUSY_SECONDS = 60  # a writer waits so long for another


@dataclass(frozen=True)
class Attempt:
    """One try to train a cell."""

    key: str
    number: int
    trial_id: int
    attempts: int  # tries at the cell so far, this one included


@dataclass
class Standing:
    """What the ledger knows of each cell, by key."""

    accepted: dict[str, dict[str, Any]] = field(default_factory=dict)
    crashed: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)


class Ledger:
    """A study's attempts in `url`, by default an SQLite file in `state`.

    `shas` gives the hash of each cell's corpus at hand; results on another corpus do not count.
    """

    def __init__(self, study: str, state: Path, url: str | None, shas: Mapping[str, str]) -> None:
        self._shas = shas
        state.mkdir(parents=True, exist_ok=True)
        url = url or f"sqlite:///{state.resolve() / 'ledger.db'}"
        # A new database is made by one process; several at once crash (measured with optuna 5.0.0).
        with FileLock(state / "ledger.lock"):
            storage = RDBStorage(url, engine_kwargs=_engine_options(url))
            if url.startswith("sqlite"):
                _begin_immediate(storage)
            self._study = optuna.create_study(
                storage=storage, study_name=study, load_if_exists=True, direction="minimize"
            )

    def claim(self, keys: Iterable[str]) -> Attempt | None:
        """Begins an attempt at the first key that is neither done, crashed nor being tried."""
        keys = list(keys)
        while True:
            standing = self.standing()
            taken = standing.accepted.keys() | standing.crashed.keys() | standing.running
            key = next((key for key in keys if key not in taken), None)
            if key is None:
                return None
            token = uuid.uuid4().hex
            owner = {"host": socket.gethostname(), "pid": os.getpid()}
            attributes = {"cell": key, "token": token, "owner": owner}
            self._study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs=attributes))
            trials = [t for t in self._trials() if t.user_attrs.get("cell") == key]
            mine = next(t for t in trials if t.user_attrs["token"] == token)
            rivals = [t for t in trials if t.state == TrialState.RUNNING or self._counts(t)]
            if min(t.number for t in rivals) == mine.number:
                tries = sum(t.user_attrs.get("ended") != "duplicate" for t in trials)
                return Attempt(key, mine.number, mine._trial_id, tries)
            self._end(mine._trial_id, TrialState.FAIL, ended="duplicate")

    def done(self, attempt: Attempt, record: dict[str, Any], run: str) -> None:
        """A completed measurement; `run` is the tracker's name of the attempt."""
        loss = record.get("final_loss")
        value = (
            loss if loss is not None and math.isfinite(loss) else math.inf
        )  # NaN would be a failure
        self._end(
            attempt.trial_id, TrialState.COMPLETE, value, ended="done", record=record, run=run
        )

    def error(self, attempt: Attempt, record: dict[str, Any], error: str) -> None:
        """An exception in our process: the cell counts as crashed until `retry`."""
        self._end(attempt.trial_id, TrialState.FAIL, ended="error", record=record, error=error)

    def release(self, attempt: Attempt) -> None:
        """The attempt was interrupted; its cell is free again."""
        self._end(attempt.trial_id, TrialState.FAIL, ended="released")

    def retry(self) -> None:
        """Crashes until now no longer count."""
        self._study.set_user_attr("retry_from", len(self._trials()))

    def recover(self) -> list[int]:
        """Ends attempts whose process on this host is gone; gives their numbers."""
        lost = []
        for trial in self._trials():
            if trial.state != TrialState.RUNNING:
                continue
            owner = trial.user_attrs.get("owner")
            if owner and owner["host"] == socket.gethostname() and not _alive(owner["pid"]):
                self._end(trial._trial_id, TrialState.FAIL, ended="lost")
                lost.append(trial.number)
        return lost

    def standing(self) -> Standing:
        standing = Standing()
        since = self._study.user_attrs.get("retry_from", 0)
        for trial in self._trials():
            key, ended = trial.user_attrs.get("cell"), trial.user_attrs.get("ended")
            if key is None:
                continue
            if self._counts(trial):
                attributes = trial.user_attrs
                record = {**attributes["record"], "tracked": attributes["run"]}
                standing.accepted.setdefault(key, record)
            elif trial.state == TrialState.RUNNING:
                standing.running.add(key)
            elif ended == "error" and trial.number >= since:
                standing.crashed[key] = trial.user_attrs["record"]
        standing.running -= standing.accepted.keys()
        for key in standing.accepted.keys() | standing.running:
            standing.crashed.pop(key, None)
        return standing

    def _counts(self, trial: FrozenTrial) -> bool:
        """Whether a trial is a completed measurement on the corpus at hand."""
        if trial.state != TrialState.COMPLETE:
            return False
        key, record = trial.user_attrs["cell"], trial.user_attrs["record"]
        return bool(record["data_sha"] == self._shas.get(key, record["data_sha"]))

    def _trials(self) -> list[FrozenTrial]:
        trials: list[FrozenTrial] = self._study.get_trials(deepcopy=False)
        return trials

    def _end(
        self, trial_id: int, state: TrialState, value: float | None = None, **attributes: Any
    ) -> None:
        trial = optuna.Trial(self._study, trial_id)
        for name, content in attributes.items():  # those of ended trials cannot change
            trial.set_user_attr(name, content)
        self._study.tell(trial, value, state)


def _engine_options(url: str) -> dict[str, Any]:
    return {"connect_args": {"timeout": BUSY_SECONDS}} if url.startswith("sqlite") else {}


def _begin_immediate(storage: RDBStorage) -> None:
    """Takes SQLite's write lock when a transaction begins: read-then-write is atomic only then."""

    @event.listens_for(storage.engine, "connect")
    def no_implicit_begin(dbapi: Any, _: Any) -> None:
        dbapi.isolation_level = None

    @event.listens_for(storage.engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
