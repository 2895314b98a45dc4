"""Workers and whole commands killed at random moments change nothing but the time it takes."""

import os
import random
import signal
import time
from collections import Counter

from harness.sweep.ledger import cell_of
from tests.commands import Command
from tests.sweep.conftest import Workplace

CELLS, WORKERS, COMMANDS = 60, 30, 10
STEPS = 150
WORKER_SIGNALS = (signal.SIGKILL, signal.SIGTERM)
COMMAND_SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)


class Killer:
    """Kills workers in the middle of an attempt, and commands; its choices follow from a seed."""

    def __init__(self, place: Workplace, seed: int) -> None:
        self.place, self.draw = place, random.Random(seed)
        self.hit: Counter[str] = Counter()  # of each cell, to stay below its budget of lost workers

    def kill_worker(self, command: Command) -> None:
        """Waits for an attempt that has begun, and kills its worker a moment later."""
        ledger = self.place.ledger()
        while not command.ended():
            ledger._refresh()
            busy = [t for t in ledger._open.values() if self.hit[cell_of(t)] < 3]
            if busy:
                victim = self.draw.choice(busy)
                time.sleep(self.draw.uniform(0.0, 0.4))
                try:
                    os.kill(victim.user_attrs["lease"]["pid"], self.draw.choice(WORKER_SIGNALS))
                except ProcessLookupError:
                    continue
                self.hit[cell_of(victim)] += 1
                return
            time.sleep(0.02)
        raise AssertionError("the study was finished before the killer was")

    def kill_command(self, command: Command) -> None:
        time.sleep(self.draw.uniform(0.0, 0.5))
        command.kill(self.draw.choice(COMMAND_SIGNALS))
        code, _, said = command.wait()
        assert code in (-signal.SIGKILL, 130, 143), said


def test_forty_kills_change_no_result(place: Workplace) -> None:
    place.study(steps=STEPS, seeds=CELLS // 2)
    killer = Killer(place, seed=7)
    for i in range(COMMANDS):
        command = place.start("run", "--workers", "4")
        while not (place.folder / ".harness/ledger.db").exists():
            time.sleep(0.05)
        for _ in range(i * WORKERS // COMMANDS, (i + 1) * WORKERS // COMMANDS):
            killer.kill_worker(command)
        killer.kill_command(command)
    assert killer.hit.total() == WORKERS
    place.call("run", "--workers", "4")

    assert len({row["run_id"] for row in place.rows()}) == len(place.rows()) == CELLS
    assert place.left_open() == []
    assert "0 differences" in place.call("verify")

    peace = Workplace(place.folder / "peace")
    peace.folder.mkdir()
    peace.study(steps=STEPS, seeds=CELLS // 2)
    peace.call("run")
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
