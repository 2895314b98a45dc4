"""Whole commands as processes of their own, forked from one that has loaded the heavy libraries."""

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path

from harness.sweep.worker import PRELOADED

COMMANDS = [  # what the commands import
    *("harness.artifacts", "harness.checks", "harness.cli", "harness.commands"),
    "harness.sweep.pool",
    *("harness.analysis.figures", "harness.analysis.report"),
]


class Command:
    """`harness WORDS` at work in a folder."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._said = Path(tempfile.mkdtemp(prefix="said"))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED, *COMMANDS])
        forkserver.ensure_running()
        server = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
        self.process = context.Process(target=_command, args=(folder, words, self._said, server))
        self.process.start()

    def kill(self, sign: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, sign)

    def ended(self) -> bool:
        return not self.process.is_alive()

    def errors(self) -> str:
        """What it has said on stderr so far."""
        path = self._said / "2"
        return path.read_text() if path.exists() else ""

    def wait(self, seconds: float = 180.0) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "the command did not end"
        out, err = ((self._said / name).read_text() for name in "12")
        shutil.rmtree(self._said)
        return self.process.exitcode, out, err


def run(folder: Path, *words: str, code: int = 0) -> tuple[str, str]:
    """Stdout and stderr of a command that is to end with `code`."""
    found, out, err = Command(folder, *words).wait()
    assert found == code, err + out
    return out, err


def _command(folder: Path, words: tuple[str, ...], said: Path, server: str) -> None:
    os.chdir(folder)
    # Its workers come from the same fork server, not from a new one that would load all again.
    forkserver._forkserver._forkserver_address = server  # type: ignore[attr-defined]
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
    forkserver.ensure_running = lambda: None
    for descriptor in (1, 2):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(said / str(descriptor), flags), descriptor)
    multiprocessing.current_process().name = "command"
    sys.argv = ["harness", *words]
    from harness.cli import main

    main()
