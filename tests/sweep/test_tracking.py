"""The tracker is whole or not there, of this version, and moves with its state."""

import multiprocessing
import os
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from sqlalchemy import Engine, event

from harness.data.translation.translations import Translated
from harness.errors import ConfigError
from harness.sweep.study import load
from harness.sweep.tracking import Tracker, tracking_uri
from harness.sweep.worker import PRELOADED
from harness.training.curves import Curves
from tests.commands import COMMANDS

PAIRS = [Translated("de>en", f"\u201e{i}\u201c", "one\x0btwo", "") for i in range(3)]
CONFIG = load("smoke").cells[0].config
HALF = 600  # of the 1,700 statements that make MLflow's schema


@pytest.fixture
def state(template: Path, tmp_path: Path) -> Path:
    """With databases that hold nothing."""
    return Path(shutil.copytree(template, tmp_path / "state"))


def tracked(tracker: Tracker, loss: float) -> str:
    """A run that has left its curves."""
    run = tracker.start(CONFIG, 0, "token")
    curves = Curves()
    curves.add("loss/train", 0, loss)
    run.keep(curves)
    run.end("FINISHED")
    return run.run


def loss(tracker: Tracker, run: str) -> list[float]:
    curves = tracker.curves(run)
    assert curves is not None
    return curves.values["loss/train"]


def break_off(statement: int, target: Any, *arguments: Any) -> None:
    """Calls it in a process that is killed before it executes that statement."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *COMMANDS])
    process = context.Process(target=_break_off, args=(statement, target, *arguments))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def _break_off(statement: int, target: Any, *arguments: Any) -> None:
    left = iter(range(statement))

    @event.listens_for(Engine, "before_cursor_execute")
    def count(*_: Any) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    target(*arguments)


def change(state: Path, statement: str) -> None:
    with closing(sqlite3.connect(state / "mlflow.db")) as connection, connection:
        connection.execute(statement)


def test_a_first_start_broken_off_at_any_moment_continues(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for moment in (60, HALF, 1200):
        break_off(moment, Tracker, "s", state)
        assert not (state / "mlflow.db").exists()
    tracker = Tracker("s", state)
    assert loss(tracker, tracked(tracker, 2.5)) == [2.5]
    assert {path.name for path in state.iterdir()} == {"mlflow.db", "mlflow.lock", "artifacts"}


def test_a_store_that_an_older_version_made_by_half_is_made_anew(tmp_path: Path) -> None:
    break_off(HALF, MlflowClient, f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert (tmp_path / "mlflow.db").stat().st_size
    tracker = Tracker("s", tmp_path)
    assert loss(tracker, tracked(tracker, 2.5)) == [2.5]


@pytest.mark.parametrize(
    ("revision", "mend"),
    [("f" * 12, "install the mlflow"), ("451aebb31d03", "upgrade it with 'mlflow db upgrade")],
)
def test_a_store_of_another_version_is_one_line_and_stays(
    revision: str, mend: str, state: Path
) -> None:
    tracked(Tracker("s", state), 2.5)
    change(state, f"UPDATE alembic_version SET version_num = '{revision}'")
    before = (state / "mlflow.db").read_bytes()
    with pytest.raises(ConfigError) as caught:
        Tracker("s", state)
    said = str(caught.value)
    assert said.startswith(f"{state / 'mlflow.db'}: schema of mlflow: found {revision}, expected ")
    assert mend in said
    assert (state / "mlflow.db").read_bytes() == before


def test_a_state_that_was_moved_is_read_and_written_where_it_is(
    state: Path, tmp_path: Path
) -> None:
    run = tracked(Tracker("s", state), 2.5)
    moved = state.rename(tmp_path / "b?d")
    tracker = Tracker("s", moved)
    new = tracked(tracker, 1.5)
    assert [loss(tracker, each) for each in (run, new)] == [[2.5], [1.5]]
    assert {path.name for path in tmp_path.iterdir()} == {"b?d"}
    page = MlflowClient(tracking_uri(moved))  # what MLflow's page shows
    for each in (run, new):
        assert {file.path for file in page.list_artifacts(each)} == {"config.json", "curves.npz"}


def test_the_page_of_a_moved_state_has_its_artifacts(state: Path, tmp_path: Path) -> None:
    run = tracked(Tracker("s", state), 2.5)
    page = MlflowClient(tracking_uri(state.rename(tmp_path / "moved")))
    assert {file.path for file in page.list_artifacts(run)} == {"config.json", "curves.npz"}


def test_a_run_is_kept_beside_its_store_whatever_mlflow_takes_for_its_address(
    state: Path, tmp_path: Path
) -> None:
    tracker = Tracker("s", state)
    change(state, f"UPDATE experiments SET artifact_location = 'file://{tmp_path / 'gone'}'")
    assert loss(tracker, tracked(tracker, 2.5)) == [2.5]
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-30]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no curves"),
        lambda path: shutil.rmtree(path.parents[3]),
    ],
)
def test_curves_that_are_lost_are_none(damage: Any, state: Path) -> None:
    tracker = Tracker("s", state)
    run = tracked(tracker, 2.5)
    damage(state / "artifacts/s" / run / "artifacts/curves.npz")
    assert tracker.curves(run) is None


@pytest.mark.parametrize("own", [True, False])
def test_translations_are_an_artifact_that_is_read_whole_or_not_at_all(
    own: bool, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not own:  # a store that MLflow keeps artifacts for
        shutil.copy(state / "mlflow.db", tmp_path / "other.db")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    tracker = Tracker("s", state)
    without, run = tracked(tracker, 2.5), tracker.start(CONFIG, 1, "other")
    run.keep(Curves(), PAIRS)
    assert tracker.translations(run.run) == PAIRS
    assert tracker.translations(without) is None
    path = state / "artifacts/s" / run.run / "artifacts/translations.tsv"
    for damaged in (path.read_bytes()[:-30], b"\xff", b""):
        path.write_bytes(damaged)
        assert tracker.translations(run.run) is None


def test_a_store_that_was_lost_is_made_anew_and_the_curves_are_had(
    state: Path, template: Path
) -> None:
    run = tracked(Tracker("s", state), 2.5)
    shutil.copy(template / "mlflow.db", state / "mlflow.db")
    assert loss(Tracker("s", state), run) == [2.5]


@pytest.mark.parametrize("name", ["a?b", "a%20b"])
def test_the_path_of_the_state_may_hold_anything(name: str, template: Path, tmp_path: Path) -> None:
    state = Path(shutil.copytree(template, tmp_path / name))
    tracker = Tracker("s", state)
    assert loss(tracker, tracked(tracker, 2.5)) == [2.5]
    assert [path.name for path in tmp_path.iterdir()] == [name]
