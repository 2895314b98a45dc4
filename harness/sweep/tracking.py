"""Attempts as MLflow runs: scalars in batches, short parameters, config and curves as artifacts."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # MLflow looks for git and warns without it

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from harness.errors import ConfigError, redacted
from harness.training.config import Config, canonical
from harness.training.curves import Curves

logging.getLogger("mlflow").setLevel(logging.WARNING)

Ending = tuple[str, Mapping[str, Any]]  # MLflow's status, and the record of the attempt

FLUSH_SECONDS, FLUSH_METRICS = 5.0, 1000  # MLflow takes at most 1000 metrics a batch
SERVER_SECONDS = 10.0  # for MLflow's server to end


def tracking_uri(state: Path) -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{state.resolve() / 'mlflow.db'}"


class Tracker:
    """A study's experiment. URI and artifact location are always explicit: MLflow's defaults depend
    on the working directory."""

    def __init__(self, study: str, state: Path) -> None:
        state.mkdir(parents=True, exist_ok=True)
        uri = tracking_uri(state)
        with FileLock(state / "mlflow.lock"):  # a new database is made by one process
            self.client = MlflowClient(tracking_uri=uri)
            found = self.client.get_experiment_by_name(study)
            local = uri.startswith("sqlite")
            folder = (state.resolve() / "artifacts" / study).as_uri() if local else None
            self.experiment = (
                found.experiment_id
                if found
                else self.client.create_experiment(study, artifact_location=folder)
            )
        self.study = study

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
        self.client.log_text(run, canonical(config.model_dump(mode="json")), "config.json")
        return TrackedRun(self.client, run)

    def curves(self, run: str) -> Curves:
        """Every series of an attempt that has come to its end."""
        with tempfile.TemporaryDirectory() as folder:
            path = self.client.download_artifacts(run, "curves.npz", folder)
            return Curves.loads(Path(path).read_bytes())

    def runs(self, status: str | None = None) -> Iterator[Run]:
        """The experiment's runs, by pages."""
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
                TrackedRun(self.client, run.info.run_id).end(*ending)
                closed += 1
        return closed


class TrackedRun:
    """One attempt; `log` gathers scalars and writes them a batch at a time."""

    def __init__(self, client: MlflowClient, run: str) -> None:
        self.client, self.run = client, run
        self._pending: list[Metric] = []
        self._flushed = time.monotonic()

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._pending += [Metric(name, value, now, step) for name, value in scalars.items()]
        full = len(self._pending) > FLUSH_METRICS - 50
        if full or time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()

    def keep(self, curves: Curves) -> None:
        """Stores all series and the scalars that are still in hand."""
        self._flush()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "curves.npz"
            path.write_bytes(curves.dumps())
            self.client.log_artifact(self.run, str(path))

    def note(self, name: str, text: str) -> None:
        """Stores a text beside the curves."""
        self.client.log_text(self.run, text, name)

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

    def _flush(self) -> None:
        if self._pending:
            self.client.log_batch(self.run, metrics=self._pending)
        self._pending, self._flushed = [], time.monotonic()


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
