"""One worker: the signals that it obeys, and what it leaves in the stores."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.data.tasks import data_sha
from harness.errors import ConfigError
from harness.sweep import worker
from harness.sweep.ledger import how_ended
from harness.sweep.tracking import Tracker
from harness.sweep.worker import Interrupts, Job, same_corpus
from harness.training.config import Config, parse
from tests.sweep.conftest import Workplace
from tests.sweep.test_kill_points import PLANT

SLEEPING = """
import time
from pathlib import Path
{imported}
def long(*words, **named):
    Path("begun").touch()
    time.sleep(600)
here.{name} = long
"""
TRANSLATION = '''"""Pairs of sentences"""
from harness.sweep import Study
{before}
STUDY = Study(
    base={{
        "scheme": "rezero", "seed": 0,
        "model": {{"family": "encoder_decoder", "depth": 1, "width": 8, "heads": 2, "ffn": 16}},
        "data": {{"name": "translation", "corpus": "toy", "pieces": 80}},
        "optim": {{"lr": 1e-2}},
        "train": {{"steps": 1, "batch": 100, "length": 40}},
    }},
    axes={{"seed": [0]}},
)
'''
TURNED = """
import harness.training.train as train
def build(*words):
    import os, signal
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except SystemExit:
        raise ValueError("as a library would") from None
train.build = build
"""
WHERE = {
    "validates": ("from harness.training.module import LanguageModule as here", "evaluate"),
    "translates its test split": ("import harness.training.probes.outputs as here", "decode"),
}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) is before


def test_signals_are_noted_and_obeyed_at_the_end() -> None:
    with pytest.raises(SystemExit) as left, Interrupts((signal.SIGTERM,)) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)  # which is the command's to obey
        assert not interrupts.pending()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.pending()
    assert left.value.code == 143


def test_signals_are_obeyed_at_once_where_that_is_asked_for() -> None:
    reached = []
    interrupts = Interrupts((signal.SIGTERM,))
    with pytest.raises(SystemExit) as left, interrupts, interrupts.at_once():
        reached.append("training")
        with interrupts.at_once(False):
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("telling the tracker")
        reached.append("never")
    assert left.value.code == 143
    assert reached == ["training", "telling the tracker"]


def test_a_signal_that_came_before_is_obeyed_at_once() -> None:
    with pytest.raises(SystemExit), Interrupts((signal.SIGTERM,)) as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        with interrupts.at_once():
            pytest.fail("it has come")


@pytest.mark.parametrize("where", WHERE)
def test_a_worker_can_leave_while_it(where: str, place: Workplace) -> None:
    from tests import parallel

    imported, name = WHERE[where]
    before = SLEEPING.format(imported=imported, name=name)
    (place.folder / "data").mkdir()
    parallel.write(place.folder / "data")
    (place.folder / "tough.py").write_text(TRANSLATION.format(before=before))
    command = place.start("worker")
    while not (place.folder / "begun").exists():
        assert not command.ended(), command.errors()
    command.kill(signal.SIGTERM)
    code, _, said = command.wait(60)
    assert code == 143
    assert said.startswith("toy: BLEU into 'tgt' ") and said.count("\n") == 1
    assert [how_ended(attempt) for attempt in place.ledger().attempts()] == ["released"]
    assert place.left_open() == []


def test_an_interrupt_that_a_library_has_turned_into_an_error_is_no_crash(
    place: Workplace,
) -> None:
    place.study(seeds=1, before=TURNED)
    assert place.call("worker", code=143) == ""
    assert [how_ended(attempt) for attempt in place.ledger().attempts()] == ["released"]


def test_a_cell_that_calls_exit_is_crashed(place: Workplace) -> None:
    exits = "import harness.training.train as train\ntrain.build = lambda *words: exit()\n"
    place.study(seeds=1, before=exits)
    said = place.call("worker", code=1)
    assert said.count("(SystemExit: None); try again with 'harness run ./tough.py --retry'") == 2
    assert {how_ended(attempt) for attempt in place.ledger().attempts()} == {"error"}


def test_what_a_killed_worker_left_open_is_closed_by_collect(place: Workplace) -> None:
    plant = "from harness.sweep.tracking import TrackedRun; before(TrackedRun, 'keep')"
    place.study(seeds=1, before=PLANT + plant)
    place.call("worker", code=-9)
    place.call("collect")
    assert [how_ended(attempt) for attempt in place.ledger().attempts()] == ["lost"]
    assert place.left_open() == []


def test_an_experiment_deleted_in_the_tracker_is_one_line_that_says_how_to_restore_it(
    place: Workplace,
) -> None:
    tracker = Tracker("tough", place.folder / ".harness")
    uri, experiment = tracker.client.tracking_uri, tracker.experiment
    tracker.client.delete_experiment(experiment)
    place.study(seeds=1)
    assert place.call("worker", code=2) == (
        "tracker: the experiment 'tough' was deleted; restore it with "
        f"'MLFLOW_TRACKING_URI={uri} mlflow experiments restore --experiment-id {experiment}', "
        "or rename the study file\n"
    )
    assert [how_ended(attempt) for attempt in place.ledger().attempts()] == ["released"]


def test_an_attempt_taken_from_a_living_worker_ends_in_the_tracker_as_in_the_ledger(
    place: Workplace,
) -> None:
    taken = """
import os
import optuna
from harness.sweep.ledger import Ledger
done = Ledger.done
def late(self, attempt, record, run):
    if not os.path.exists("taken"):
        open("taken", "w").close()
        self._end(attempt.trial_id, optuna.trial.TrialState.FAIL, {"end": {"how": "lost"}})
    return done(self, attempt, record, run)
Ledger.done = late
"""
    place.study(seeds=1, before=taken)
    place.call("worker")
    assert place.left_open() == []
    assert [how_ended(attempt) for attempt in place.ledger().attempts()] == ["lost", "", ""]


def job(folder: Path, config: Config, sha: str) -> Job:
    digests = {config.run_id: {"data_sha": sha}}
    return Job(folder / "s.py", "", "s", {}, digests, folder, folder, None, "")


@pytest.mark.parametrize(
    ("path", "words"),
    [("b.txt", "b.txt: changed"), ("*.txt", "b.txt, the newest of 2 files: changed")],
)
def test_an_edited_corpus_is_named_by_its_file(
    path: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(("b.txt", "a.txt")):
        (tmp_path / name).write_text("to be, or not to be: that is the question. " * 20)
        os.utime(tmp_path / name, (i, i))
    given = {"scheme": "rezero", "seed": 0, "data": {"name": "text", "path": path}}
    given |= {"model": {"family": "decoder", "depth": 1, "width": 8, "heads": 2, "ffn": 16}}
    given |= {"optim": {"lr": 1e-2}, "train": {"steps": 3, "batch": 4, "length": 8}}
    config = parse(given, "test")
    begun = job(tmp_path, config, data_sha(config.data, tmp_path))
    same_corpus(begun, config)
    with (tmp_path / "b.txt").open("a") as text:
        text.write("one line more")
    with pytest.raises(ConfigError, match=f"^{re.escape(words)} since the command began"):
        same_corpus(begun, config)


def test_a_commit_of_a_folder_above_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment often lies in a repository of something else."""
    for words in (
        ("init", "--quiet"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--allow-empty", "-qm", "theirs"),
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (below := tmp_path / "site-packages").mkdir()
    monkeypatch.setattr(worker, "ROOT", below)
    assert worker.commit() == ""
    monkeypatch.setattr(worker, "ROOT", tmp_path)
    assert len(worker.commit()) == 12
