"""What a worker says of itself: which commit it runs, and nothing that its command has said."""

import logging
import subprocess
from pathlib import Path
from typing import cast

import pytest

from harness.sweep import worker
from harness.sweep.worker import Job


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


def test_workers_do_not_warn_of_what_their_command_has_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def work(job: Job) -> None:
        logging.getLogger("harness.schemes.registry").warning("plug-in")
        logging.getLogger("harness.schemes.registry").error("trouble")

    monkeypatch.setattr(worker, "work", work)
    try:
        worker._work_in_pool(cast(Job, None))
    finally:
        logging.getLogger("harness").setLevel(logging.NOTSET)
    assert [record.getMessage() for record in caplog.records] == ["trouble"]
