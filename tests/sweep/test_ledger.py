"""Every cell is claimed by one worker and accepted once."""

import multiprocessing
import resource
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from optuna.trial import TrialState, create_trial

from harness.errors import ConfigError, surroundings
from harness.sweep.lease import RENEWED, SECONDS, Watch, lease
from harness.sweep.ledger import Ledger, cell_of, how_ended

RECORD = {"outcome": "trained", "final_loss": 2.5, "data_sha": "a"}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger("s", tmp_path, None, {})


def test_a_cell_is_claimed_in_order_and_once(ledger: Ledger) -> None:
    first, second = ledger.claim(["x", "y"]), ledger.claim(["x", "y"])
    assert first and second and (first.key, second.key) == ("x", "y")
    assert ledger.claim(["x", "y"]) is None
    assert ledger.standing().running == {"x", "y"}


def test_a_done_cell_is_accepted_with_its_record(ledger: Ledger) -> None:
    attempt = ledger.claim(["x"])
    assert attempt is not None
    ledger.done(attempt, RECORD, "run")
    accepted = ledger.standing().accepted
    assert accepted.keys() == {"x"}
    assert (accepted["x"]["record"], accepted["x"]["run"]) == (RECORD, "run")
    assert ledger.claim(["x"]) is None


def test_a_diverged_cell_is_complete_though_it_has_no_loss(ledger: Ledger) -> None:
    for key, loss in (("none", None), ("nan", float("nan")), ("inf", float("inf"))):
        attempt = ledger.claim([key])
        assert attempt is not None
        ledger.done(attempt, {**RECORD, "outcome": "diverged", "final_loss": loss}, "run")
    assert ledger.standing().accepted.keys() == {"none", "nan", "inf"}


def test_a_released_cell_is_free_again_and_counts_its_attempts(ledger: Ledger) -> None:
    attempt = ledger.claim(["x"])
    assert attempt is not None
    ledger.release(attempt)
    again = ledger.claim(["x"])
    assert again is not None and again.attempts == 2


def test_a_crashed_cell_waits_for_retry(ledger: Ledger) -> None:
    attempt = ledger.claim(["x"])
    assert attempt is not None
    ledger.error(attempt, {"outcome": "crashed", "reason": "ValueError"}, "Traceback")
    assert ledger.claim(["x"]) is None
    assert ledger.standing().crashed.keys() == {"x"}
    ledger.retry()
    again = ledger.claim(["x"])
    assert again is not None
    ledger.done(again, RECORD, "run")
    assert ledger.standing().crashed == {}


def test_the_lowest_complete_trial_is_the_accepted_one(ledger: Ledger) -> None:
    for loss in (1.0, 2.0):
        attributes = {
            "claim": {"cell": "x", "token": str(loss)},
            "result": {"record": {**RECORD, "final_loss": loss}, "run": "r"},
        }
        ledger._study.add_trial(create_trial(value=loss, user_attrs=attributes))
    assert ledger.standing().accepted["x"]["record"]["final_loss"] == 1.0
    assert ledger.wasted() == 1


def test_a_result_on_another_corpus_does_not_count(tmp_path: Path) -> None:
    old = Ledger("s", tmp_path, None, {"x": {"data_sha": "a"}})
    attempt = old.claim(["x"])
    assert attempt is not None
    old.done(attempt, RECORD, "run")
    new = Ledger("s", tmp_path, None, {"x": {"data_sha": "b"}})
    assert new.standing().accepted == {}
    assert new.claim(["x"]) is not None


def test_an_attempt_whose_process_is_gone_is_recovered(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_claim_and_leave, args=(tmp_path,))
    process.start()
    process.join()
    ledger = Ledger("s", tmp_path, None, {})
    assert ledger.standing().running == {"x"}
    assert ledger.recover() == [0]
    assert ledger.standing().running == set()
    mine = ledger.claim(["x"])
    assert mine is not None and ledger.recover() == []


def test_an_attempt_of_a_process_that_was_told_to_leave_is_not_lost(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_claim_and_leave, args=(tmp_path,))
    process.start()
    process.join()
    ledger = Ledger("s", tmp_path, None, {})
    assert process.pid
    assert ledger.recover({process.pid}) == [0]
    (attempt,) = ledger.attempts()
    assert how_ended(attempt) == "released"


@pytest.mark.parametrize("clock", [-600.0, 600.0])
def test_a_worker_on_a_host_with_another_time_keeps_its_attempt(
    clock: float, ledger: Ledger, tmp_path: Path
) -> None:
    there = {**lease(), "host": "another", "pid": 1, "expires": time.time() + SECONDS + clock}
    attributes = {"claim": {"cell": "x", "token": "t"}, "lease": there}
    ledger._study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs=attributes))
    now = [0.0]
    ledger._watch = Watch(lambda: now[0])
    for _ in range(20):
        now[0] += RENEWED
        ledger._storage.set_trial_user_attr(1, "lease", {**there, "renewal": str(now[0])})
        assert ledger.claim(["x"]) is None
    for _ in range(round(SECONDS / RENEWED)):  # it is gone
        now[0] += RENEWED
        assert ledger.standing().running == {"x"}
        mine = ledger.claim(["x"])
    assert mine is not None and how_ended(ledger.attempts()[0]) == "lost"


def test_a_trial_without_a_cell_is_nobodys(ledger: Ledger) -> None:
    ledger._study.ask()
    assert ledger.standing().running == set()


def test_four_workers_on_an_empty_directory_claim_each_cell_once(tmp_path: Path) -> None:
    keys = [f"cell{i}" for i in range(60)]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_do_all, args=(tmp_path, keys)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    ledger = Ledger("s", tmp_path, None, {})
    trials = ledger.attempts()
    complete = [cell_of(t) for t in trials if t.state == TrialState.COMPLETE]
    assert sorted(complete) == sorted(keys)
    assert not [t for t in trials if t.state == TrialState.RUNNING]


def test_a_ledger_broken_off_while_it_is_made_is_not_there(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    for limit in (20_000, 100_000):
        process = context.Process(target=_make_within, args=(tmp_path, limit))
        process.start()
        process.join()
        assert process.exitcode == 7
        assert [path.name for path in tmp_path.iterdir()] == ["ledger.lock"]
    assert Ledger("s", tmp_path, None, {}).claim(["x"])


def test_a_ledger_made_by_half_is_made_anew(tmp_path: Path) -> None:
    Ledger("s", tmp_path, None, {})
    _change(tmp_path, "DROP INDEX ix_studies_study_name", "DELETE FROM alembic_version")
    Ledger("s", tmp_path, None, {})
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        indices = connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")
        assert ("ix_studies_study_name",) in indices.fetchall()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE version_info SET schema_version = 99", "schema_version 99"),
        ("ALTER TABLE version_info DROP COLUMN schema_version", "schema_version None"),
        ("UPDATE alembic_version SET version_num = 'v9.0.0.a'", "v9.0.0.a"),
    ],
)
def test_a_newer_ledger_is_one_line_and_stays(change: str, found: str, tmp_path: Path) -> None:
    Ledger("s", tmp_path, None, {}).claim(["x"])
    _change(tmp_path, "PRAGMA ignore_check_constraints = ON", change)
    before = (tmp_path / "ledger.db").read_bytes()
    with pytest.raises(ConfigError) as caught:
        Ledger("s", tmp_path, None, {})
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'ledger.db'}: schema of optuna: found {found}, expected v")
    assert "; install the optuna that made it, or move the file away" in said
    assert (tmp_path / "ledger.db").read_bytes() == before


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a{b}"])
def test_the_path_of_the_state_may_hold_anything(name: str, tmp_path: Path) -> None:
    state = tmp_path / name
    Ledger("s", state, None, {}).claim(["x"])
    assert Ledger("s", state, None, {}).standing().running == {"x"}
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("back", [False, True])
def test_a_state_removed_under_way_is_said(back: bool, tmp_path: Path) -> None:
    ledger = Ledger("s", tmp_path / "state", None, {})
    attempt = ledger.claim(["x"])
    assert attempt is not None
    shutil.rmtree(tmp_path / "state")
    if back:
        Ledger("s", tmp_path / "state", None, {})
    for call in (ledger.standing, lambda: ledger.done(attempt, RECORD, "run")):
        with pytest.raises(FileNotFoundError) as caught:
            call()
        line = surroundings(caught.value)
        assert line and line.startswith(f"{tmp_path / 'state/ledger.db'}: removed under way; ")
    assert (tmp_path / "state").exists() == back


def _make_within(state: Path, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        Ledger("s", state, None, {})
    except OSError as error:
        assert error.filename == str(state / "ledger.db")
        raise SystemExit(7) from None


def _change(state: Path, *statements: str) -> None:
    with closing(sqlite3.connect(state / "ledger.db")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def _claim_and_leave(state: Path) -> None:
    Ledger("s", state, None, {}).claim(["x"])


def _do_all(state: Path, keys: list[str]) -> None:
    ledger = Ledger("s", state, None, {})
    while attempt := ledger.claim(keys):
        ledger.done(attempt, RECORD, "run")
