"""Attempts as MLflow runs: scalars in batches, short parameters, and artifacts: config, curves,
translations."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # MLflow looks for git and warns without it
# A server that fails is asked again for half a minute, and then by another worker; not for four.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4")

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.store import db_migrations
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from harness.data.translation import translations as texts
from harness.data.translation.translations import Translated
from harness.database import Database, Schema
from harness.errors import ConfigError, redacted
from harness.training.config import Config, canonical
from harness.training.curves import Curves

logging.getLogger("mlflow").setLevel(logging.WARNING)
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs what it raises

Ending = tuple[str, Mapping[str, Any]]  # MLflow's status, and the record of the attempt

FLUSH_SECONDS, FLUSH_METRICS = 5.0, 1000  # MLflow takes at most 1000 metrics a batch
SERVER_SECONDS = 10.0  # for MLflow's server to end
VARIABLE = "MLFLOW_TRACKING_URI"
CURVES, TRANSLATIONS = "curves.npz", "translations.tsv"
SCHEMA = Schema(
    package="mlflow",
    migrations=Path(db_migrations.__file__).parent,
    holds="runs",
    upgrade="mlflow db upgrade",
    # Not a path: MLflow builds SQL from it, which fails for a path with a colon or a quote.
    make=lambda url: SqlAlchemyStore(url, "mlflow-artifacts:/").engine.dispose(),
)


def tracking_uri(state: Path) -> str:
    """The URI of the store; an SQLite file is created if it is missing."""
    uri = os.environ.get(VARIABLE, "")
    if uri.startswith("http"):
        return uri
    with _opening(state) as database:
        return database.url


@contextmanager
def _opening(state: Path) -> Iterator[Database]:
    """Holds the lock while the store is opened; corrects the addresses of a moved state."""
    state.mkdir(parents=True, exist_ok=True)
    database = Database(VARIABLE, os.environ.get(VARIABLE), state / "mlflow.db")
    with database.opening(SCHEMA):
        if database.own and not database.read_only:
            _relocate(database, state)
        yield database


def _relocate(database: Database, state: Path) -> None:
    with database.connected() as connection:
        known = connection.execute("SELECT experiment_id, name, artifact_location FROM experiments")
        for experiment, study, location in known.fetchall():
            folder = _artifacts(state, study).as_uri()
            same = "/".join(folder.split("/")[-2:])  # artifacts/STUDY, of ours alone
            if location != folder and location.startswith("file:") and location.endswith(same):
                values = {"experiment": experiment, "folder": folder}
                connection.execute(
                    "UPDATE runs SET artifact_uri = :folder || '/' || run_uuid || '/artifacts' "
                    "WHERE experiment_id = :experiment",
                    values,
                )
                connection.execute(
                    "UPDATE experiments SET artifact_location = :folder "
                    "WHERE experiment_id = :experiment",
                    values,
                )


def _artifacts(state: Path, study: str) -> Path:
    return state.resolve() / "artifacts" / study


class Tracker:
    """A study's experiment. URI and artifact location are always explicit: MLflow's defaults depend
    on the working directory. Artifacts in the state are found relative to it: MLflow's addresses
    are absolute.
    """

    def __init__(self, study: str, state: Path) -> None:
        self.study = study
        self.experiment: str | None = None  # None if the store is read-only and lacks it
        folder = _artifacts(state, study)
        with _opening(state) as database:
            self._folder = folder if database.own else None
            self.client = MlflowClient(tracking_uri=database.url)
            if found := self.client.get_experiment_by_name(study):
                self.experiment = found.experiment_id
            elif not database.read_only:
                location = folder.as_uri() if database.file else None
                self.experiment = self.client.create_experiment(study, artifact_location=location)

    def start(self, config: Config, attempt: int, token: str) -> "TrackedRun":
        """A run for an attempt. Its number is the ledger's; its token is its own: a server may
        track the same study for several ledgers."""
        name = f"{config.scheme}-{config.model.depth}-seed{config.seed}"
        tags = {"study": self.study, "run_id": config.run_id, "attempt": str(attempt)}
        tags["token"] = token
        try:
            run = self.client.create_run(self.experiment, run_name=name, tags=tags).info.run_id
        except MlflowException:
            if self.client.get_experiment(self.experiment).lifecycle_stage == LifecycleStage.ACTIVE:
                raise
            raise ConfigError(
                f"tracker: the experiment '{self.study}' was deleted; restore it with "
                f"'MLFLOW_TRACKING_URI={self.client.tracking_uri} mlflow experiments restore "
                f"--experiment-id {self.experiment}', or rename the study file"
            ) from None
        self.client.log_batch(run, params=[Param(k, v) for k, v in _parameters(config).items()])
        tracked = self._tracked(run)
        tracked.note("config.json", canonical(config.model_dump(mode="json")))
        return tracked

    def curves(self, run: str) -> Curves | None:
        """Every series of an attempt that has ended; None if the stored curves cannot be read."""
        content = self._artifact(run, CURVES)
        try:
            return None if content is None else Curves.loads(content)
        except (BadZipFile, zlib.error, EOFError, KeyError, ValueError):  # damaged
            return None

    def translations(self, run: str) -> list[Translated] | None:
        """The translations of an attempt that has ended; None if it has stored none or if they
        cannot be read."""
        content = self._artifact(run, TRANSLATIONS)
        try:
            return None if content is None else texts.loads(content.decode())
        except ValueError:  # damaged
            return None

    def _artifact(self, run: str, name: str) -> bytes | None:
        """The content of a run's artifact; None if it is lost or out of reach."""
        try:
            if self._folder:
                return _of_run(self._folder, run).joinpath(name).read_bytes()
            with tempfile.TemporaryDirectory() as folder:
                return Path(self.client.download_artifacts(run, name, folder)).read_bytes()
        except (OSError, MlflowException):
            return None

    def runs(self, status: str | None = None) -> Iterator[Run]:
        """The experiment's runs, by pages."""
        if self.experiment is None:
            return
        wanted, token = f"attributes.status = '{status}'" if status else "", None
        while True:
            page = self.client.search_runs([self.experiment], wanted, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def close(self, endings: Mapping[str, Ending]) -> int:
        """Ends runs whose attempts have ended without them, as theirs did; how many."""
        closed = 0
        for run in list(self.runs("RUNNING")):
            ending = endings.get(run.data.tags.get("token", ""))
            if ending:
                self._tracked(run.info.run_id).end(*ending)
                closed += 1
        return closed

    def _tracked(self, run: str) -> "TrackedRun":
        return TrackedRun(self.client, run, self._folder and _of_run(self._folder, run))


class TrackedRun:
    """One attempt; `log` gathers scalars and writes them a batch at a time.

    `folder` holds its artifacts; with None MLflow decides where they are.
    """

    def __init__(self, client: MlflowClient, run: str, folder: Path | None) -> None:
        self.client, self.run, self._folder = client, run, folder
        self._pending: list[Metric] = []
        self._flushed = time.monotonic()

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._pending += [Metric(name, value, now, step) for name, value in scalars.items()]
        full = len(self._pending) > FLUSH_METRICS - 50
        if full or time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()

    def keep(self, curves: Curves, translations: Sequence[Translated] = ()) -> None:
        """Stores all series, translations if there are any, and the scalars still in hand."""
        self._flush()
        self._store(CURVES, curves.dumps())
        if translations:
            self.note(TRANSLATIONS, texts.dumps(translations))

    def note(self, name: str, text: str) -> None:
        """Stores a text beside the curves."""
        self._store(name, text.encode())

    def end(self, status: str, record: Mapping[str, Any] | None = None) -> None:
        """`status` as MLflow names it. Divergence is an outcome of a finished run: a tag, and a
        finite metric that says when."""
        record = record or {}
        if record.get("diverged_at") is not None:
            self.log(record["diverged_at"], {"diverged_at": float(record["diverged_at"])})
        self._flush()
        tags = [RunTag(name, record[name]) for name in ("outcome", "reason") if record.get(name)]
        self.client.log_batch(self.run, tags=tags)
        self.client.set_terminated(self.run, status)

    def _store(self, name: str, content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            if self._folder:
                LocalArtifactRepository(self._folder.as_uri()).log_artifact(str(path))
            else:
                self.client.log_artifact(self.run, str(path))

    def _flush(self) -> None:
        if self._pending:
            self.client.log_batch(self.run, metrics=self._pending)
        self._pending, self._flushed = [], time.monotonic()


def _of_run(folder: Path, run: str) -> Path:
    return folder / run / "artifacts"


def _parameters(config: Config) -> dict[str, str]:
    """Short fields only: MLflow cuts long ones, and the whole config is an artifact."""
    flat: dict[str, str] = {}
    for name, value in config.model_dump(mode="json").items():
        fields = value.items() if isinstance(value, dict) and name != "scheme_options" else ()
        flat |= {f"{name}.{key}": str(inner) for key, inner in fields}
        if not fields:
            flat[name] = str(value)
    return {key: value for key, value in flat.items() if len(value) <= 250}


def serve(state: Path, port: int) -> int:
    """MLflow's page on this state's store, or the address of the server that tracks."""
    uri = tracking_uri(state)
    if uri.startswith("http"):
        print(f"the tracker is a server of its own: {redacted(uri)}")
        return 0
    command = [sys.executable, "-m", "mlflow", "server"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # By environment: a command line, with its password, is for all to see.
    environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    # A group of its own, which ends whole: the server is several processes.
    server = subprocess.Popen(command, env=environment, process_group=0)
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    try:
        return server.wait()
    finally:
        from harness.sweep.pool import undisturbed

        with undisturbed():
            _end_group(server)


def _end_group(server: "subprocess.Popen[bytes]") -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(server.pid, sign)
            server.wait(SERVER_SECONDS)
