"""Workers and whole commands killed at random moments change nothing but the time it takes."""

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest

from harness.sweep.ledger import cell_of
from tests.commands import Command
from tests.sweep.conftest import Workplace

STEPS = 150
LOST = 3  # of a cell at most: below its budget of lost workers
WORKER_SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGSTOP)
COMMAND_SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)


class Killer:
    """Kills workers in the middle of an attempt, and commands; its choices follow from a seed."""

    def __init__(self, place: Workplace, seed: int) -> None:
        self.place, self.draw = place, random.Random(seed)
        self.hit: Counter[signal.Signals] = Counter()  # workers
        self.lost: Counter[str] = Counter()  # of each cell

    def hit_worker(self, command: Command) -> None:
        """Waits for an attempt that has begun, and hits its worker a moment later."""
        ledger = self.place.ledger()
        while not command.ended():
            ledger._refresh()
            busy = [t for t in ledger._open.values() if self.lost[cell_of(t)] < LOST]
            if busy:
                victim, sign = self.draw.choice(busy), self.draw.choice(WORKER_SIGNALS)
                time.sleep(self.draw.uniform(0.0, 0.4))
                try:
                    self._hit(victim.user_attrs["lease"]["pid"], sign)
                except ProcessLookupError:
                    continue
                self.hit[sign] += 1
                self.lost[cell_of(victim)] += sign == signal.SIGKILL
                return
            time.sleep(0.02)
        raise AssertionError("the study was finished before the killer was")

    def kill_command(self, command: Command) -> None:
        """At times it is stopped for a while before."""
        time.sleep(self.draw.uniform(0.0, 0.5))
        if self.draw.random() < 0.25:
            assert command.process.pid is not None
            self._hit(command.process.pid, signal.SIGSTOP)
        command.kill(self.draw.choice(COMMAND_SIGNALS))
        code, _, said = command.wait()
        assert code in (-signal.SIGKILL, 130, 143), said

    def _hit(self, pid: int, sign: signal.Signals) -> None:
        os.kill(pid, sign)
        if sign == signal.SIGSTOP:
            time.sleep(self.draw.uniform(0.0, 0.6))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def finish(*commands: Command) -> None:
    for command in commands:
        code, _, said = command.wait(3600)
        assert code == 0, said


@pytest.mark.parametrize(
    ("cells", "workers", "commands"),
    [(60, 30, 10), pytest.param(600, 440, 60, marks=pytest.mark.slow)],
    ids=["forty", "five hundred"],
)
def test_random_kills_change_no_result(
    cells: int, workers: int, commands: int, place: Workplace
) -> None:
    place.study(steps=STEPS, seeds=cells // 2)
    killer = Killer(place, seed=7)
    for i in range(commands):
        command = place.start("run", "--workers", "4")
        while not (place.folder / ".harness/ledger.db").exists():
            time.sleep(0.05)
        for _ in range(i * workers // commands, (i + 1) * workers // commands):
            killer.hit_worker(command)
        killer.kill_command(command)
    assert killer.hit.total() == workers
    assert killer.hit.keys() == {*WORKER_SIGNALS}
    finish(*[place.start("worker") for _ in range(2)])
    place.call("collect")

    assert len({row["run_id"] for row in place.rows()}) == len(place.rows()) == cells
    assert place.left_open() == []
    assert "0 differences" in place.call("verify")
    attempts = len(place.ledger().attempts())
    place.call("run")
    assert len(place.ledger().attempts()) == attempts

    peace = Workplace(place.folder / "peace")
    peace.folder.mkdir()
    peace.study(steps=STEPS, seeds=cells // 2)
    finish(peace.start("run"))
    assert place.measured() == peace.measured()
    curves = "results/tough/curves.csv.gz"
    assert (place.folder / curves).read_bytes() == (peace.folder / curves).read_bytes()


def test_commands_started_in_the_same_second_share_the_work(bare_place: Workplace) -> None:
    place = bare_place
    place.study(steps=20, seeds=6)
    commands = [place.start("run", "--workers", "1") for _ in range(2)]
    commands += [place.start("worker") for _ in range(2)]
    for command in commands:
        code, _, said = command.wait()
        assert code == 0, said
    attempts = place.ledger().attempts()
    assert sorted(cell_of(a) for a in attempts) == sorted(row["run_id"] for row in place.rows())
    assert len({a.user_attrs["lease"]["pid"] for a in attempts}) > 1
    assert place.status()["missing"] == 0
    assert place.call("verify").startswith("0 differences, 0 wasted")
