"""A tiny study, the command that runs it, and what is left when it is over."""

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from optuna.trial import TrialState

from harness.results.columns import COST, PROVENANCE
from harness.sweep.ledger import Ledger
from harness.sweep.tracking import Tracker
from tests.commands import Command, run

STUDY = '''"""Does it survive?"""
from harness.sweep import Study
{before}
STUDY = Study(
    base={{
        "scheme": "deepnorm", "seed": 0,
        "model": {{"family": "decoder", "depth": 1, "width": 8, "heads": 2, "ffn": 16}},
        "data": {{"name": "reverse", "valid_sequences": 8}},
        "optim": {{"lr": 1e-2}},
        "train": {{"steps": {steps}, "batch": 4, "length": 4}},
    }},
    axes={{"scheme": ["post_norm", "rezero"], "seed": list(range({seeds}))}},
)
'''


class Workplace:
    """A folder with a study; commands run in it."""

    def __init__(self, folder: Path, template: Path | None = None) -> None:
        self.folder = folder
        if template:
            shutil.copytree(template, folder / ".harness")

    def study(self, *, steps: int = 3, seeds: int = 3, before: str = "") -> None:
        text = STUDY.format(steps=steps, seeds=seeds, before=before)
        (self.folder / "tough.py").write_text(text)

    def start(self, word: str, *words: str) -> Command:
        return Command(self.folder, word, "./tough.py", *words)

    def call(self, word: str, *words: str, code: int = 0) -> str:
        """What the command says, on stdout and stderr."""
        return "".join(run(self.folder, word, "./tough.py", *words, code=code))

    def status(self) -> dict[str, int]:
        out = self.call("status", "--json")
        return json.loads(out)  # type: ignore[no-any-return]

    def rows(self) -> list[dict[str, str]]:
        path = self.folder / "results/tough/runs.csv"
        if not path.exists():
            return []
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    def measured(self) -> list[dict[str, str]]:
        """Rows without cost and provenance."""
        kept = [name for name in (self.rows() or [{}])[0] if name not in (*COST, *PROVENANCE)]
        return [{name: row[name] for name in kept} for row in self.rows()]

    def ledger(self) -> Ledger:
        return Ledger("tough", self.folder / ".harness", None, {})

    def left_open(self) -> list[str]:
        """Attempts and tracked runs that no one has ended."""
        trials = self.ledger()._study.get_trials(deepcopy=False)
        found = [f"trial {t.number}" for t in trials if t.state == TrialState.RUNNING]
        client = MlflowClient(tracking_uri=f"sqlite:///{self.folder / '.harness/mlflow.db'}")
        experiment = client.get_experiment_by_name("tough")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id], "attributes.status = 'RUNNING'")
        return found + [r.info.run_id for r in runs]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state whose databases have been made, which takes two seconds, and hold nothing yet."""
    state = tmp_path_factory.mktemp("template")
    Ledger("other", state, None, {})
    Tracker("other", state)
    return state


@pytest.fixture
def place(tmp_path: Path, template: Path) -> Workplace:
    return Workplace(tmp_path, template)


@pytest.fixture
def bare_place(tmp_path: Path) -> Workplace:
    """Without a state."""
    return Workplace(tmp_path)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """The same study, run in peace."""
    place = Workplace(tmp_path_factory.mktemp("undisturbed"))
    place.study()
    place.call("run", "--workers", "2")
    yield place
