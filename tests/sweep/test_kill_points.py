"""A worker or command killed (-9) at a named point costs at most the attempt, never a result.

A study file is imported by every process of a run, so it can plant the kill: once, told by a file.
"""

import shutil

import pytest

from tests.sweep.conftest import Workplace

PLANT = """
import os, signal
from pathlib import Path

def once():
    try:
        Path("killed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def die():
    if once():
        os.kill(os.getpid(), signal.SIGKILL)

def before(owner, name, when=lambda *a, **k: True):
    whole = getattr(owner, name)
    def planted(*a, **k):
        if when(*a, **k):
            die()
        return whole(*a, **k)
    setattr(owner, name, planted)

def after(owner, name, when=lambda *a, **k: True):
    whole = getattr(owner, name)
    def planted(*a, **k):
        result = whole(*a, **k)
        if when(*a, **k):
            die()
        return result
    setattr(owner, name, planted)
"""

IN_WORKER = {
    "before the claim": "from harness.sweep.ledger import Ledger; before(Ledger, 'claim')",
    "after the claim": "from harness.sweep.ledger import Ledger; after(Ledger, 'claim')",
    "before the tracker knows": "from harness.sweep.tracking import Tracker\n"
    "before(Tracker, 'start')",
    "after the tracker knows": "from harness.sweep.tracking import Tracker\n"
    "after(Tracker, 'start')",
    "in the middle of training": "from harness.training.probes import GradientProbe\n"
    "before(GradientProbe, 'on_before_optimizer_step', lambda self, t, *a: t.global_step == 1)",
    "before the curves are stored": "from harness.sweep.tracking import TrackedRun\n"
    "before(TrackedRun, 'keep')",
    "before the record": "from harness.sweep.ledger import Ledger; before(Ledger, 'done')",
    "between record and tell": "from optuna.storages import _CachedStorage\n"
    "before(_CachedStorage, 'set_trial_state_values', lambda self, i, state, v=None: v)",
    "after the tell": "from harness.sweep.ledger import Ledger; after(Ledger, 'done')",
    "after the tracker's end": "from harness.sweep.tracking import TrackedRun\n"
    "after(TrackedRun, 'end')",
}

IN_COMMAND = {
    "while the ledger's schema is made": "from optuna.storages._rdb import models\n"
    "before(models.VersionInfoModel, 'find')",
    "while the tracker's schema is made": "import mlflow.store.db.utils as made\n"
    "before(made, '_upgrade_db_if_exists' if hasattr(made, '_upgrade_db_if_exists') else "
    "'_initialize_tables')",
    "with the tracker's schema made, before its rename": "before(Path, 'replace', "
    "lambda self, to: to.name == 'mlflow.db')",
    "after the tell, before the row": "from harness.results.store import Results\n"
    "before(Results, 'write', lambda self, rows: rows)",
    "with the table half written": """
from harness.results import rows
whole = rows.replace
def half(path, content):
    if path.name == 'runs.csv' and content.count(b'\\n') > 2 and once():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name('.runs.csv.part').write_bytes(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    whole(path, content)
rows.replace = half
""",
    "before the rename": "before(Path, 'replace', lambda self, to: to.name == 'runs.csv')",
    "with a row between two tables": """
from harness.results.store import Results
before(Results, '_write', lambda self, name, rows: name == 'runs.csv' and len(rows) > 2)
""",
    "before the curves are written": "from harness.results.store import Results\n"
    "before(Results, 'write_curves')",
}


def same_as_undisturbed(place: Workplace, undisturbed: Workplace) -> None:
    assert (place.folder / "killed").exists(), "the kill was not reached"
    assert place.measured() == undisturbed.measured()
    curves = "results/tough/curves.csv.gz"
    assert (place.folder / curves).read_bytes() == (undisturbed.folder / curves).read_bytes()
    assert place.left_open() == []
    assert "0 differences" in place.call("verify")
    assert not list((place.folder / "results/tough").glob("*.part"))


@pytest.mark.parametrize("point", IN_WORKER)
def test_a_worker_killed_there_is_replaced(
    point: str, place: Workplace, undisturbed: Workplace
) -> None:
    only_workers = (
        'import multiprocessing\nif multiprocessing.current_process().name != "command":\n'
    )
    planted = "\n".join("    " + line for line in IN_WORKER[point].splitlines())
    place.study(before=PLANT + only_workers + planted)
    place.call("run", "--workers", "2")
    same_as_undisturbed(place, undisturbed)


@pytest.mark.parametrize("point", IN_COMMAND)
def test_a_command_killed_there_is_given_again(
    point: str, place: Workplace, undisturbed: Workplace
) -> None:
    if "schema" in point:
        shutil.rmtree(place.folder / ".harness")
    only_command = (
        'import multiprocessing\nif multiprocessing.current_process().name == "command":\n'
    )
    planted = "\n".join("    " + line for line in IN_COMMAND[point].splitlines())
    place.study(before=PLANT + only_command + planted)
    place.call("run", "--workers", "2", code=-9)
    place.call("run", "--workers", "2")
    same_as_undisturbed(place, undisturbed)
