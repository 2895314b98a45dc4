"""A command and its workers: what fails for all ends with one line, what is stopped is free."""

import json
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any, cast

import pytest

from harness.sweep import pool
from harness.sweep.ledger import how_ended
from harness.sweep.worker import Job
from tests.sweep.conftest import Workplace
from tests.sweep.test_surroundings import one_line

IN_WORKER = 'import multiprocessing\nif multiprocessing.current_process().name != "command":\n'
FULL = (
    IN_WORKER
    + """
    import errno, os
    from harness.sweep.tracking import Tracker
    def full(*words):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "mlflow.db")
    Tracker.start = full
"""
)
TEXT = '''"""Characters of a file"""
from harness.sweep import Study
{before}
STUDY = Study(
    base={{
        "scheme": "rezero", "seed": 0,
        "model": {{"family": "decoder", "depth": 1, "width": 8, "heads": 2, "ffn": 16}},
        "data": {{"name": "text", "path": "texts", "valid_windows": 4}},
        "optim": {{"lr": 1e-2}},
        "train": {{"steps": 3, "batch": 4, "length": 8}},
    }},
    axes={{"seed": [0, 1]}},
)
'''
EDITED = (
    IN_WORKER
    + """
    with open("data/texts/b.txt", "a") as text:
        text.write("one line more\\n")
"""
)
STUBBORN = """
import multiprocessing
if multiprocessing.current_process().name == "command":
    import harness.sweep.pool
    harness.sweep.pool.LEAVE_SECONDS = 0.2
else:
    import signal, time
    from pathlib import Path
    from harness.training.probes import ValidationProbe
    def long_step(*words):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path("begun").touch()
        time.sleep(600)
    ValidationProbe.on_train_batch_end = long_step
"""


def ends(place: Workplace) -> list[str]:
    return [how_ended(attempt) for attempt in place.ledger().attempts()]


def test_a_store_that_fails_after_every_claim_ends_the_run_with_one_line(place: Workplace) -> None:
    place.study(seeds=1, before=FULL)
    said = one_line(place.call("run", "--workers", "1", code=1))
    assert said.startswith("mlflow.db: No space left on device; put that right, then give the same")
    assert ends(place) == ["released"] * 3
    assert place.left_open() == []


@contextmanager
def failing_server() -> Iterator[str]:
    """The address of a tracker that knows its experiment and fails at every run."""
    known = {"experiment_id": "1", "name": "tough", "lifecycle_stage": "active"}
    answers: dict[str, tuple[int, dict[str, Any]]] = {
        "get-by-name": (200, {"experiment": known}),
        "get": (200, {"experiment": known}),
        "search": (200, {}),
        "create": (500, {"error_code": "INTERNAL_ERROR", "message": "out of order"}),
    }

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, said = answers[self.path.partition("?")[0].rpartition("/")[2]]
            body = json.dumps(said).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *words: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_tracker_that_answers_500_after_every_claim_ends_the_run_with_one_line(
    place: Workplace,
) -> None:
    with failing_server() as address:
        place.study(
            seeds=1,
            before="import os\n"
            f"os.environ['MLFLOW_TRACKING_URI'] = '{address}'\n"
            "os.environ['MLFLOW_HTTP_REQUEST_MAX_RETRIES'] = '0'",
        )
        said = one_line(place.call("run", "--workers", "1", code=1))
    assert said.startswith(
        f"ledger or tracker: API request to {address}/api/2.0/mlflow/runs/create"
    )
    assert "500" in said
    assert said.endswith("give the same command again: what is finished is kept")
    assert ends(place) == ["released"] * 3


def test_a_corpus_edited_under_its_run_ends_it_with_one_line(place: Workplace) -> None:
    texts = place.folder / "data/texts"
    texts.mkdir(parents=True)
    for name in ("a.txt", "b.txt"):
        (texts / name).write_text("to be, or not to be: that is the question. " * 20)
    (place.folder / "tough.py").write_text(TEXT.format(before=EDITED))
    assert one_line(place.call("run", "--workers", "1", code=2)) == (
        "data/texts/b.txt, the newest of 2 files: changed since the command began; give the same "
        "command again, and it trains on what is there now"
    )
    assert ends(place) == ["released"]
    assert place.left_open() == []


def test_a_worker_that_the_command_had_to_kill_has_released_its_cell(place: Workplace) -> None:
    place.study(seeds=1, before=STUBBORN)
    command = place.start("run", "--workers", "1")
    while not (place.folder / "begun").exists():
        assert not command.ended(), command.errors()
    command.kill(signal.SIGINT)
    assert command.wait()[0] == 130
    assert ends(place) == ["released"]
    assert place.left_open() == []


def test_workers_do_not_warn_of_what_their_command_has_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def work(job: Job) -> None:
        logging.getLogger("harness.schemes.registry").warning("plug-in")
        logging.getLogger("harness.schemes.registry").error("trouble")

    monkeypatch.setattr(pool, "work", work)
    before = signal.getsignal(signal.SIGINT)
    try:
        pool._work_in_pool(cast(Job, None), cast(Connection, None))
    finally:
        logging.getLogger("harness").setLevel(logging.NOTSET)
        signal.signal(signal.SIGINT, before)
    assert [record.getMessage() for record in caplog.records] == ["trouble"]
