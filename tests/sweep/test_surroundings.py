"""Bad surroundings: one clear line each, and no finished cell lost."""

import os
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from harness.results.store import Results
from harness.sweep.study import load
from tests.sweep.conftest import Workplace

IN_COMMAND = 'import multiprocessing\nif multiprocessing.current_process().name == "command":\n    '
IN_WORKER = 'import multiprocessing\nif multiprocessing.current_process().name != "command":\n    '
FULL_DISK = IN_COMMAND + (
    "import os, errno\n"
    "    if not os.path.exists('space'):\n"
    "        def full(fd): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'runs.csv')\n"
    "        os.fsync = full\n"
)
# The superuser, too, writes only where the permissions say so.
BOUND = """
import ctypes
kernel = ctypes.CDLL(None, use_errno=True)
if hasattr(kernel, "capset"):
    assert kernel.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
"""


@pytest.fixture
def done(place: Workplace) -> Workplace:
    """The study, run, with its state."""
    place.study(seeds=1)
    place.call("run")
    return place


def one_line(said: str) -> str:
    """The only line that is no progress."""
    lines = [x for x in said.splitlines() if not re.match(r"tough: \d+/\d+ cells", x)]
    assert len(lines) == 1, said
    return lines[0]


def test_a_full_disk_loses_no_finished_cell(place: Workplace) -> None:
    place.study(seeds=1, before=FULL_DISK)
    said = one_line(place.call("run", code=1))
    assert said == (
        "runs.csv: No space left on device; put that right, then give the same command again: "
        "what is finished is kept"
    )
    (place.folder / "space").touch()
    finished = len(place.ledger().standing().accepted)
    place.call("run")
    assert len(place.rows()) == 2
    assert len(place.ledger().attempts()) == 2 + (2 - finished)  # what was done is not redone
    assert place.call("verify").startswith("0 differences, 0 wasted")


def test_results_that_cannot_be_written_are_collected_later(place: Workplace) -> None:
    place.study(seeds=1)
    (place.folder / "results").write_text("a file where a folder should be")
    assert "results" in one_line(place.call("run", code=1))
    (place.folder / "results").unlink()
    place.call("run")
    assert len(place.rows()) == 2


@pytest.mark.parametrize("name", ["ledger.db", "mlflow.db"])
def test_a_broken_database_is_one_line_and_results_stay(name: str, done: Workplace) -> None:
    before = (done.folder / "results/tough/runs.csv").read_bytes()
    (done.folder / ".harness" / name).write_bytes(b"no database" * 500)
    done.study(seeds=2)
    said = one_line(done.call("run", code=1))
    assert "file is not a database" in said and "give the same command again" in said
    assert (done.folder / "results/tough/runs.csv").read_bytes() == before
    (done.folder / ".harness" / name).unlink()
    done.call("run")
    assert len(done.rows()) == 4


def test_a_deleted_state_loses_no_result(done: Workplace, tmp_path: Path) -> None:
    before = (done.folder / "results/tough/runs.csv").read_bytes()
    (done.folder / ".harness").rename(tmp_path / "gone")
    assert done.status()["imported"] == 2
    done.call("run")
    assert (done.folder / "results/tough/runs.csv").read_bytes() == before
    assert done.ledger().attempts() == []


def test_a_state_removed_under_way_is_said_and_costs_no_result(place: Workplace) -> None:
    plant = IN_WORKER + (
        "import shutil\n"
        "    from harness.sweep.tracking import TrackedRun\n"
        "    whole = TrackedRun.keep\n"
        "    def keep(run, *kept):\n"
        "        shutil.rmtree('.harness', ignore_errors=True)\n"
        "        whole(run, *kept)\n"
        "    TrackedRun.keep = keep\n"
    )
    place.study(seeds=1, before=plant)
    said = place.call("run", "--workers", "1", code=1).splitlines()
    line = f"{place.folder / '.harness/ledger.db'}: removed under way; put that right, then give "
    assert said[-1].startswith(line) and not any("Traceback" in each for each in said)
    place.study(seeds=1)
    place.call("run")
    assert len(place.rows()) == 2


def test_a_state_that_was_moved_gives_its_curves(done: Workplace, tmp_path: Path) -> None:
    curves = (done.folder / "results/tough/curves.csv.gz").read_bytes()
    shutil.rmtree(done.folder / "results")
    moved = Workplace(tmp_path / "moved")
    moved.folder.mkdir()
    for name in (".harness", "tough.py"):
        (done.folder / name).rename(moved.folder / name)
    moved.call("collect")
    assert (moved.folder / "results/tough/curves.csv.gz").read_bytes() == curves
    moved.study(seeds=2)
    moved.call("run")
    assert moved.call("verify").startswith("0 differences, 0 wasted")


def test_curves_that_are_lost_are_named_and_stay_empty(done: Workplace) -> None:
    plot = "from harness.analysis.figures import loss_traces\nFIGURES = [loss_traces]\n"
    with (done.folder / "tough.py").open("a") as study:
        study.write(plot)
    shutil.rmtree(done.folder / "results")
    first, second = sorted(done.ledger().standing().accepted.items())
    shutil.rmtree(done.folder / ".harness/artifacts/tough" / first[1]["run"])
    said = done.call("collect")
    assert f"the tracker has no curves of {first[0]}: they stay empty\n" in said
    assert {row["run_id"] for row in done.rows()} == {first[0], second[0]}
    table = Results(done.folder / "results", load(str(done.folder / "tough.py"))).table()
    assert {*table.curves["run_id"]} == {second[0]}
    assert list((done.folder / "results/tough").glob("*.svg"))
    assert f"{first[0]}: no curves; the tracker has lost them" in done.call("verify", code=1)


def test_a_folder_that_may_only_be_read_is_looked_at(done: Workplace) -> None:
    done.study(seeds=2, before=BOUND)
    stores = [done.folder / name for name in (".harness", "results", "results/tough")]
    files = [path for store in stores for path in store.iterdir() if path.is_file()]
    for path in files:
        if path.name.endswith("lock"):
            path.unlink()
    there = [*stores, *(path for path in files if path.exists())]
    for path in there:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert done.status()["missing"] == 2
        assert done.call("verify").startswith("0 differences, 0 wasted")
        assert "2 of 4 cells would run" in done.call("run", "--dry-run")
        assert done.call("verify", "--set", "train.steps=4").startswith("0 differences")
        assert "Permission denied" in one_line(done.call("run", code=1))
        assert done.status()["running"] == 0
    finally:
        for path in there:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_locked_database_is_one_line(place: Workplace) -> None:
    place.study(before="import harness.sweep.ledger as ledger\nledger.BUSY_SECONDS = 0.5")
    connection = sqlite3.connect(place.folder / ".harness/ledger.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        assert "database is locked" in one_line(place.call("run", code=1))
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: len(text) - 40], "line 3: not a whole row; restore the file"),
        (lambda text: text + text.splitlines()[1] + "\n", "stands twice; restore the file"),
        (lambda text: "", "line 1: not the columns of runs; restore the file"),
        (lambda text: text.replace("data_sha", "sha"), "line 1: not the columns of runs"),
        (
            lambda text: text.replace("trained", "tr\0ned").replace("stalled", "\0"),
            "outcome: unknown value",
        ),
    ],
)
def test_a_damaged_table_is_one_line_and_is_not_overwritten(
    damage: object, words: str, done: Workplace
) -> None:
    path = done.folder / "results/tough/runs.csv"
    path.write_text(damaged := damage(path.read_text()))  # type: ignore[operator]
    for command in ("run", "status", "table"):
        said = done.call(command, code=2)
        assert said.startswith("results/tough/runs.csv: ") and words in said
        assert said.count("\n") == 1
    assert path.read_text() == damaged


def test_a_measurement_that_is_no_number_is_one_line(done: Workplace) -> None:
    path = done.folder / "results/tough/runs.csv"
    loss = done.rows()[0]["final_loss"]
    path.write_text(path.read_text().replace(loss, "low"))
    assert done.call("table", code=2) == (
        "results/tough/runs.csv: line 2: final_loss: expected a number, got 'low'; "
        "restore the file\n"
    )


def test_a_cost_that_is_no_number_is_one_line(done: Workplace) -> None:
    path = done.folder / "results/tough/runs.csv"
    seconds = done.rows()[0]["seconds"]
    path.write_text(path.read_text().replace(f",{seconds},", ",x,", 1))
    assert done.call("status", code=2) == (
        "results/tough/runs.csv: line 2: seconds: expected a number, got 'x'; restore the file\n"
    )


def test_a_mistyped_state_is_not_made_by_looking(done: Workplace) -> None:
    done.call("verify", "--state", "elsewhere")
    done.call("status", "--state", "elsewhere")
    assert not (done.folder / "elsewhere").exists()


def test_damaged_curves_are_one_line(done: Workplace) -> None:
    path = done.folder / "results/tough/curves.csv.gz"
    path.write_bytes(path.read_bytes()[:-20])
    said = one_line(done.call("run", code=2))
    assert said.startswith("results/tough/curves.csv.gz: not readable")
    assert said.endswith("restore or remove it")
    path.unlink()
    done.call("run")
    assert path.exists()


@pytest.mark.parametrize("prefer", ["ledger", "results"])
def test_a_row_that_disagrees_with_the_ledger_waits_for_a_decision(
    prefer: str, done: Workplace
) -> None:
    path = done.folder / "results/tough/runs.csv"
    before, loss = path.read_text(), done.rows()[0]["final_loss"]
    edited = before.replace(f",{loss},", ",1.23456,")
    path.write_text(edited)
    said = one_line(done.call("run", code=1))
    assert re.fullmatch(
        rf"tough: run \w+: \w+_loss is 1.23456 in runs.csv and {loss} in the ledger; "
        "say --prefer results or --prefer ledger",
        said,
    )
    assert path.read_text() == edited
    assert f"is 1.23456 in runs.csv, {loss} in the ledger" in done.call("verify", code=1)
    done.call("run", "--prefer", prefer)
    assert path.read_text() == (before if prefer == "ledger" else edited)
    done.call("run")  # decided for good
    assert "0 differences" in done.call("verify")


def test_a_cell_whose_workers_are_killed_five_times_is_crashed(place: Workplace) -> None:
    plant = IN_WORKER + (
        "import os, signal\n"
        "    import harness.training.train as t\n"
        "    whole = t.train\n"
        "    def killed(config, *a, **k):\n"
        "        if config.scheme == 'rezero' and not os.path.exists('memory'):\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return whole(config, *a, **k)\n"
        "    t.train = killed\n"
    )
    place.study(seeds=1, before=plant)
    said = place.call("run", code=1)
    rows = {row["scheme"]: row for row in place.rows()}
    assert (rows["rezero"]["outcome"], rows["rezero"]["reason"]) == ("crashed", "WorkerLost")
    assert rows["rezero"]["attempts"] == "5"
    assert rows["post_norm"]["outcome"] != "crashed"
    assert "(its workers were killed); try again with --retry" in said
    assert place.left_open() == []
    assert "0 differences" in place.call("verify")
    (place.folder / "memory").touch()
    place.call("run", "--retry")
    assert {row["scheme"]: row["outcome"] for row in place.rows()}["rezero"] != "crashed"


def test_a_worker_out_of_memory_crashes_its_cell_alone(place: Workplace) -> None:
    plant = IN_WORKER + (
        "import harness.training.train as t\n"
        "    whole = t.train\n"
        "    def starved(config, *a, **k):\n"
        "        if config.scheme == 'rezero':\n"
        "            raise MemoryError('4 GiB')\n"
        "        return whole(config, *a, **k)\n"
        "    t.train = starved\n"
    )
    place.study(seeds=1, before=plant)
    said = place.call("run", code=1)
    assert {row["scheme"]: row["reason"] for row in place.rows()}["rezero"] == "MemoryError"
    assert "MemoryError: 4 GiB" in said
    assert "0 differences" in place.call("verify")


def test_a_study_edited_under_its_run_does_not_disturb_it(place: Workplace) -> None:
    place.study(steps=100, seeds=3)
    command = place.start("run")
    while "cells" not in command.errors():
        assert not command.ended(), command.errors()
    place.study(steps=100, seeds=1, before="x = (")
    code, _, err = command.wait()
    assert code == 0, err
    assert len(place.rows()) == 6


def test_a_tracker_that_cannot_be_reached_crashes_no_cell(
    done: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://anna:geheim@127.0.0.1:9")
    assert os.environ["MLFLOW_TRACKING_URI"]
    plant = (
        "import os\nos.environ['MLFLOW_HTTP_REQUEST_MAX_RETRIES'] = '0'\n"
        "os.environ['MLFLOW_TRACKING_URI'] = 'http://anna:geheim@127.0.0.1:9'"
    )
    done.study(seeds=2, before=plant)
    said = done.call("run", code=1)
    assert "geheim" not in said and "anna" not in said
    assert "give the same command again" in one_line(said)
    assert len(done.rows()) == 2
    done.study(seeds=2)
    done.call("run")
    assert {row["outcome"] for row in done.rows()} & {"crashed"} == set()
    assert len(done.rows()) == 4
