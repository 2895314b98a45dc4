"""The ledger of attempts, on Optuna: one trial an attempt, claimed by one worker, ended once.

The plan lives in memory; Optuna only records. A cell's accepted result is its COMPLETE trial with
the lowest number. Of several attempts at one cell that begin at once, the lowest goes on.
"""

import math
import threading
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState, create_trial

from harness.database import Database, Schema, begin_immediate
from harness.errors import ConfigError
from harness.sweep.lease import Lease, Watch, belongs, lease, renewing

optuna.logging.set_verbosity(optuna.logging.WARNING)

BUSY_SECONDS = 60  # a writer waits so long for another
LOST_ATTEMPTS = 5  # after which a cell counts as crashed
Digests = Mapping[str, Mapping[str, str]]  # by cell: of its corpus and its scheme
CRASH_OF_LOST = {"outcome": "crashed", "reason": "WorkerLost"}
SCHEMA = Schema(
    package="optuna",
    migrations=Path(models.__file__).with_name("alembic"),
    holds="trials",
    upgrade="optuna storage upgrade --storage",
    make=lambda url: RDBStorage(url).engine.dispose(),
    stamp=("version_info", "schema_version", models.SCHEMA_VERSION),
)


@dataclass(frozen=True)
class Attempt:
    """One try to train a cell. `lost` is set when its lease was taken away."""

    key: str
    token: str  # tells the attempt from those of every other ledger
    number: int
    trial_id: int
    attempts: int  # tries at the cell so far, this one included
    lost: threading.Event = field(default_factory=threading.Event)


@dataclass
class Standing:
    """What the ledger knows of each cell, by key."""

    # Its record, and as `run` the tracker's name of the attempt.
    accepted: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    crashed: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    settled: frozenset[str] = frozenset()  # of which the results are right


@dataclass
class _Cell:
    """A cell's ended attempts."""

    tries: int = 0
    accepted: FrozenTrial | None = None
    errors: list[FrozenTrial] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    wasted: list[int] = field(default_factory=list)  # complete, but not the lowest


class Ledger:
    """A study's attempts in `url`, by default an SQLite file in `state`.

    `digests` are of each cell's corpus and scheme, and may grow; results of others do not count.
    """

    def __init__(self, study: str, state: Path, url: str | None, digests: Digests) -> None:
        self._digests = digests
        state.mkdir(parents=True, exist_ok=True)
        database = Database("HARNESS_STORAGE", url, state / "ledger.db", BUSY_SECONDS)
        with database.opening(SCHEMA):
            self._study = _opened(database, study)
        self._storage = self._study._storage
        self._cells: dict[str, _Cell] = {}
        self._open: dict[int, FrozenTrial] = {}
        self._known = self._since = self._corpora = 0
        self._watch = Watch()

    def claim(self, keys: Iterable[str]) -> Attempt | None:
        """Begins an attempt at the first key that is neither done, crashed nor being tried."""
        self.recover()
        while key := self._first_free(keys):
            token = uuid.uuid4().hex
            attributes = {"claim": {"cell": key, "token": token}, "lease": lease()}
            self._study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs=attributes))
            self._refresh()
            rivals = [t for t in self._open.values() if cell_of(t) == key]
            mine = next(t for t in rivals if t.user_attrs["claim"]["token"] == token)
            cell = self._cells.get(key, _Cell())
            first = min(t.number for t in rivals) == mine.number
            if first and not cell.accepted and not self._crash(cell):
                return Attempt(key, token, mine.number, mine._trial_id, cell.tries + 1)
            self._end(mine._trial_id, TrialState.FAIL, {"end": {"how": "duplicate"}})
            self.recover()
        return None

    def kept(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Renews the attempt's lease for as long as the block runs."""

        def renew() -> None:
            try:
                self._storage.set_trial_user_attr(attempt.trial_id, "lease", lease())
            except UpdateFinishedTrialError:
                attempt.lost.set()

        return renewing(renew, attempt.lost)

    def done(self, attempt: Attempt, record: Mapping[str, Any], run: str) -> bool:
        """A completed measurement; `run` is the tracker's name of the attempt. False if the attempt
        had been given up in the meantime."""
        told = {"result": {"record": dict(record), "run": run}}
        return self._end(attempt.trial_id, TrialState.COMPLETE, told, _value(record))

    def error(self, attempt: Attempt, record: Mapping[str, Any], error: str) -> bool:
        """An exception in our process: the cell counts as crashed until `retry`."""
        told = {"how": "error", "record": {**record, "error": error}}
        return self._end(attempt.trial_id, TrialState.FAIL, {"end": told})

    def release(self, attempt: Attempt) -> bool:
        """The attempt was interrupted; its cell is free again."""
        return self._end(attempt.trial_id, TrialState.FAIL, {"end": {"how": "released"}})

    def retry(self) -> None:
        """Errors and lost attempts until now no longer count."""
        self._study.set_user_attr("retry_from", len(self._study.get_trials(deepcopy=False)))

    def recover(self, released: Collection[int] = ()) -> list[int]:
        """Ends the attempts whose workers are gone; their numbers. One that had left its record is
        done, for nothing was missing but the last word. Those of the processes `released`, which
        were told to leave, are not lost."""
        self._refresh()
        leases = {
            n: t.user_attrs["lease"] for n, t in self._open.items() if "lease" in t.user_attrs
        }
        ended = []
        for number in (self._open.keys() - leases.keys()) | {*self._watch.gone(leases)}:
            trial = self._open[number]
            if "result" in trial.user_attrs:
                value = _value(trial.user_attrs["result"]["record"])
                over = self._end(trial._trial_id, TrialState.COMPLETE, {}, value)
            else:
                left = number in leases and belongs(leases[number], released)
                how = "released" if left else "lost"
                over = self._end(trial._trial_id, TrialState.FAIL, {"end": {"how": how}})
            if over:
                ended.append(number)
        self._refresh()
        return ended

    def unsure(self) -> list[Lease]:
        """The leases, at the last `recover`, that only more looks can judge."""
        return self._watch.unsure()

    def standing(self) -> Standing:
        """Each cell's state; a cell that is done is nothing else."""
        self._refresh()
        standing = Standing(settled=frozenset(self._study.user_attrs.get("settled", ())))
        tried = self._tried()
        for key, cell in self._cells.items():
            if cell.accepted:
                standing.accepted[key] = cell.accepted.user_attrs["result"]
            elif key not in tried and (crash := self._crash(cell)):
                standing.crashed[key] = crash
        standing.running = tried - standing.accepted.keys()
        return standing

    def settle(self, keys: Iterable[str]) -> None:
        """Notes that for these cells the results are right where the ledger differs."""
        settled = self._study.user_attrs.get("settled", [])
        self._study.set_user_attr("settled", sorted({*settled, *keys}))

    def wasted(self) -> int:
        """Complete attempts at cells that a lower one had completed: no error, but a cost."""
        self._refresh()
        return sum(len(cell.wasted) for cell in self._cells.values())

    def attempts(self) -> list[FrozenTrial]:
        """Every trial that is or was an attempt at a cell, in order."""
        return [
            trial
            for trial in self._study.get_trials(deepcopy=False)
            if cell_of(trial) and how_ended(trial) != "duplicate"
        ]

    def _first_free(self, keys: Iterable[str]) -> str | None:
        tried = self._tried()
        for key in keys:
            cell = self._cells.get(key)
            if key not in tried and not (cell and (cell.accepted or self._crash(cell))):
                return key
        return None

    def _tried(self) -> set[str]:
        return {key for t in self._open.values() if (key := cell_of(t))}

    def _crash(self, cell: _Cell) -> dict[str, Any] | None:
        """The record of a cell that is not tried again before `retry`."""
        if errors := [t for t in cell.errors if t.number >= self._since]:
            return dict(errors[-1].user_attrs["end"]["record"])
        if sum(number >= self._since for number in cell.lost) >= LOST_ATTEMPTS:
            return {**CRASH_OF_LOST, "attempts": cell.tries, "error": "its workers were killed"}
        return None

    def _refresh(self) -> None:
        """Takes in what has changed: open trials, and those that are new."""
        self._since = self._study.user_attrs.get("retry_from", 0)
        trials = self._study.get_trials(deepcopy=False)
        if len(self._digests) != self._corpora:  # of what was taken in, some may not count
            self._cells, self._open, self._known, self._corpora = {}, {}, 0, len(self._digests)
        for trial in [*(trials[n] for n in self._open), *trials[self._known :]]:
            if trial.state.is_finished():
                self._open.pop(trial.number, None)
                self._take_in(trial)
            else:
                self._open[trial.number] = trial
        self._known = len(trials)

    def _take_in(self, trial: FrozenTrial) -> None:
        key, how = cell_of(trial), how_ended(trial)
        if not key or how == "duplicate":
            return
        cell = self._cells.setdefault(key, _Cell())
        cell.tries += 1
        if trial.state == TrialState.COMPLETE:
            record, today = trial.user_attrs["result"]["record"], self._digests.get(key, {})
            if any(record.get(name, digest) != digest for name, digest in today.items()):
                return
            first, second = cell.accepted, trial
            if first and first.number > second.number:
                first, second = second, first
            cell.accepted = first or second
            if first:
                cell.wasted.append(second.number)
        elif how == "error":
            cell.errors.append(trial)
        elif how == "lost":
            cell.lost.append(trial.number)

    def _end(
        self, trial_id: int, state: TrialState, told: Mapping[str, Any], *values: float
    ) -> bool:
        """False if the trial had been ended by another."""
        with suppress(UpdateFinishedTrialError):
            for name, content in told.items():  # those of ended trials cannot change
                self._storage.set_trial_user_attr(trial_id, name, content)
            self._storage.set_trial_state_values(trial_id, state, values or None)
            return True
        return False


def cell_of(trial: FrozenTrial) -> str:
    """Which cell a trial is an attempt at; '' for trials that are not ours."""
    return str(trial.user_attrs.get("claim", {}).get("cell", ""))


def how_ended(trial: FrozenTrial) -> str:
    """error, released, lost or duplicate, of a trial that is FAIL; of others it says nothing."""
    return str(trial.user_attrs.get("end", {}).get("how", ""))


def _value(record: Mapping[str, Any]) -> float:
    """The objective: infinity where there is no loss, for NaN would be a failed trial."""
    loss = record.get("final_loss")
    return loss if loss is not None and math.isfinite(loss) else math.inf


def _opened(database: Database, name: str) -> optuna.Study:
    try:
        storage = RDBStorage(database.url, database.options, skip_compatibility_check=True)
    except ImportError:
        raise ConfigError(
            "HARNESS_STORAGE: its driver is not installed; for PostgreSQL install the extra "
            "'postgres' and say postgresql+psycopg://"
        ) from None
    database.checked(SCHEMA, storage.get_current_version())
    if database.read_only:
        with suppress(KeyError):
            return optuna.load_study(storage=storage, study_name=name)
        storage = InMemoryStorage()  # the study has no attempts
    else:
        begin_immediate(storage.engine, database.file)
    return optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
