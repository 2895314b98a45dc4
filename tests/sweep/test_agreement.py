"""Ledger, tracker and results tell the same story, whatever became of a run."""

import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from mlflow import MlflowClient
from optuna.trial import TrialState, create_trial

from harness.checks import verify
from harness.commands import recover
from harness.results.store import Results
from harness.session import Places, Session
from harness.sweep.lease import RENEWED, SECONDS, Watch, lease
from harness.sweep.ledger import how_ended
from harness.sweep.study import load
from tests.sweep.conftest import Workplace

# Rates at which a run trains or stalls, and diverges; a scheme that crashes.
EVERY_OUTCOME = '''"""Every outcome"""
from harness.schemes import Place, Wiring, scheme
from harness.sweep import Study

@scheme("none")
def broken(at: Place) -> Wiring:
    """nothing"""
    raise ZeroDivisionError("broken")

STUDY = Study(
    base={
        "scheme": "rezero", "seed": 0,
        "model": {"family": "decoder", "depth": 1, "width": 8, "heads": 2, "ffn": 16},
        "data": {"name": "reverse", "valid_sequences": 8},
        "optim": {"name": "sgd", "lr": 1e-2},
        "train": {"steps": 30, "batch": 4, "length": 4},
    },
    axes={"scheme": ["rezero", "broken"], "optim.lr": [1e-3, 1e30], "seed": [0, 1]},
)
'''


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("outcomes"))
    (place.folder / "tough.py").write_text(EVERY_OUTCOME)
    place.call("run", code=1)
    return place


def test_each_outcome_is_the_same_in_all_three(finished: Workplace) -> None:
    assert {(r["scheme"], r["optim.lr"], r["outcome"], r["reason"]) for r in finished.rows()} == {
        ("rezero", "0.001", "stalled", "no_progress"),
        ("rezero", "1e+30", "diverged", "loss_nonfinite"),
        ("broken", "0.001", "crashed", "ZeroDivisionError"),
        ("broken", "1e+30", "crashed", "ZeroDivisionError"),
    }
    uri = f"sqlite:///{finished.folder / '.harness/mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("tough")
    assert experiment is not None
    rows = {r["run_id"]: r for r in finished.rows()}
    for run in client.search_runs([experiment.experiment_id]):
        row, tags = rows.pop(run.data.tags["run_id"]), run.data.tags
        assert (tags["outcome"], tags["reason"]) == (row["outcome"], row["reason"])
        assert run.info.status == ("FAILED" if row["outcome"] == "crashed" else "FINISHED")
        if row["outcome"] == "diverged":
            assert run.data.metrics["diverged_at"] == float(row["diverged_at"])
            assert row["final_loss"] == ""
        if row["outcome"] == "crashed":
            text = client.download_artifacts(run.info.run_id, "error.txt")
            assert "ZeroDivisionError: broken" in Path(text).read_text()
    assert not rows
    assert finished.call("verify").startswith("0 differences, 0 wasted")


def test_a_loss_that_is_not_finite_survives_in_the_curves(finished: Workplace) -> None:
    table = Results(finished.folder / "results", load(str(finished.folder / "tough.py"))).table()
    diverged = set(table.runs["run_id"][table.runs["outcome"] == "diverged"])
    losses = table.curves[table.curves["series"] == "loss/train"]
    last = losses[losses["run_id"].isin(diverged)].groupby("run_id").tail(1)["value"]
    assert [abs(value) < float("inf") for value in last] == [False, False]


def test_the_stores_alone_give_the_same_table_and_curves(
    finished: Workplace, tmp_path: Path
) -> None:
    before = {p.name: p.read_bytes() for p in (finished.folder / "results/tough").glob("*.*")}
    shutil.copytree(finished.folder, tmp_path / "copy")
    copy = Workplace(tmp_path / "copy")
    shutil.rmtree(copy.folder / "results")
    copy.call("collect", code=1)  # crashed cells are still an error
    after = {p.name: p.read_bytes() for p in (copy.folder / "results/tough").glob("*.*")}
    assert after == before


def test_verify_lists_what_differs(finished: Workplace, tmp_path: Path) -> None:
    shutil.copytree(finished.folder, tmp_path / "copy")
    place = Workplace(tmp_path / "copy")
    client = MlflowClient(tracking_uri=f"sqlite:///{place.folder / '.harness/mlflow.db'}")
    experiment = client.get_experiment_by_name("tough")
    assert experiment is not None
    stalled = next(
        run
        for run in client.search_runs([experiment.experiment_id])
        if run.data.tags["outcome"] == "stalled"
    )
    client.set_tag(stalled.info.run_id, "outcome", "trained")
    rows = (place.folder / "results/tough/runs.csv").read_text().splitlines(keepends=True)
    (place.folder / "results/tough/runs.csv").write_text("".join(rows[:1] + rows[2:]))
    said = place.call("verify", code=1)
    assert "['FINISHED', 'trained', 'no_progress'] in the tracker" in said
    key = rows[1].split(",")[1]
    assert f"{key}: ended in the ledger, no such row" in said
    assert "2 differences" in said


def test_a_second_signal_does_not_break_the_leaving(place: Workplace) -> None:
    place.study(steps=300, seeds=8)
    command = place.start("run", "--workers", "2")
    while "minutes left" not in command.errors():
        assert not command.ended(), command.errors()
    for _ in range(3):
        with suppress(ProcessLookupError):  # it may have left by then
            command.kill(signal.SIGINT)
        time.sleep(0.1)
    code, _, said = command.wait(60)
    assert code == 130, said
    assert place.left_open() == []
    assert place.call("verify").startswith("0 differences, 0 wasted")


def test_an_interrupted_worker_releases_its_cell_and_says_how_it_ended(place: Workplace) -> None:
    place.study(steps=2000)
    for sign, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        command = place.start("worker")
        while not place.ledger().standing().running:
            assert not command.ended(), command.errors()
        command.kill(sign)
        assert command.wait()[0] == code
        assert place.ledger().standing().running == set()
        assert place.left_open() == []
    assert place.call("verify").startswith("0 differences, 0 wasted")


@pytest.mark.parametrize("attempt", range(5))
def test_four_workers_on_an_empty_directory_share_it(attempt: int, bare_place: Workplace) -> None:
    bare_place.study(seeds=5)
    workers = [bare_place.start("worker") for _ in range(4)]
    for worker in workers:
        code, _, said = worker.wait()
        assert code == 0, said
    bare_place.call("collect")
    assert len(bare_place.rows()) == len(bare_place.ledger().attempts()) == 10
    assert bare_place.call("verify").startswith("0 differences, 0 wasted")


def session(place: Workplace) -> Session:
    folders = Places(place.folder / ".harness", place.folder / "results", place.folder / "data")
    return Session(load(str(place.folder / "tough.py")), folders)


def test_attempts_of_another_host_are_closed_if_they_are_not_renewed(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`recover` cannot see whether their workers live, and watches."""
    place.study(seeds=1)
    seen = session(place)
    ledger, now = seen.ledger, [0.0]
    held = [{**lease(), "host": host, "expires": 0.0} for host in ("silent", "lively")]
    for key, each in zip(seen.plan.by_key, held, strict=True):
        attributes = {"claim": {"cell": key, "token": key}, "lease": each}
        ledger._study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs=attributes))

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] % RENEWED == 0:
            renewed = {**held[1], "renewal": str(now[0])}
            ledger._storage.set_trial_user_attr(ledger.attempts()[1]._trial_id, "lease", renewed)

    ledger._watch = Watch(lambda: now[0])
    monkeypatch.setattr("time.sleep", sleep)
    silent, lively = verify(seen)  # both by a clock that is years behind
    assert silent.startswith("attempt 0: open on silent, and not renewed for ")
    assert " hours; if no worker is there, close it with 'harness recover " in silent
    assert lively.startswith("attempt 1: open on lively")
    assert recover(seen) == 1
    assert now[0] == SECONDS
    assert capsys.readouterr().err == (
        "2 attempts are open out of sight (on lively, silent): watching them for at most "
        "120 seconds\n"
    )
    assert [how_ended(attempt) for attempt in ledger.attempts()] == ["lost", ""]
    assert ledger.standing().running == {list(seen.plan.by_key)[1]}
