"""Who lives keeps a lease, whatever clocks say; who is gone loses it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.sweep.lease import RENEWED, SECONDS, Watch, dead, lease, overdue
from harness.sweep.ledger import Ledger

ROOT = Path(__file__).parents[2]

Lease = dict[str, Any]


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Observer:
    """Looks at one lease, each time so many seconds later."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.watch = Watch(self.clock)

    def gone(self, held: Lease, *, after: float = 0.0) -> bool:
        self.clock.now += after
        return self.watch.gone({7: held}) == [7]


@pytest.fixture
def observer() -> Observer:
    return Observer()


def elsewhere(**changes: Any) -> Lease:
    return {**lease(), "host": "another", **changes}


def ended() -> int:
    """The number of a process that is over."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_each_renewal_is_another_lease() -> None:
    assert lease() != lease()


def test_a_living_process_of_this_host_keeps_its_lease_when_it_has_expired(
    observer: Observer,
) -> None:
    held = {**lease(), "expires": 0.0}
    assert not dead(held)
    assert not any(observer.gone(held, after=RENEWED) for _ in range(50))


@pytest.mark.parametrize("changes", [{"pid": ended()}, {"started": "1"}])
def test_a_dead_process_of_this_host_loses_its_lease_at_once(
    changes: Lease, observer: Observer
) -> None:
    held = {**lease(), **changes}
    assert dead(held)
    assert observer.gone(held)


@pytest.mark.parametrize(
    "changes",
    [{"host": "another"}, {"boot": "another"}, {"space": "pid:[1]"}, {"space": None}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_process_out_of_sight_loses_its_lease_when_it_does_not_renew_it(
    changes: Lease, observer: Observer
) -> None:
    held = {**lease(), **changes, "pid": ended()}
    assert not dead(held)
    looks = [observer.gone(held, after=10.0) for _ in range(1 + round(SECONDS / 10))]
    assert looks == [False] * (len(looks) - 1) + [True]


def test_a_lease_of_an_older_version_may_be_of_another_namespace(observer: Observer) -> None:
    held = {name: value for name, value in lease().items() if name != "space"} | {"pid": ended()}
    assert not observer.gone(held)
    assert any(observer.gone(held, after=RENEWED) for _ in range(7))


@pytest.mark.parametrize("clock", [-600.0, 600.0])
def test_a_renewed_lease_holds_whatever_the_holders_clock_says(
    clock: float, observer: Observer
) -> None:
    for _ in range(20):
        held = elsewhere(expires=lease()["expires"] + clock)
        assert not observer.gone(held)
        assert not observer.gone(held, after=RENEWED)


def test_an_observer_that_has_slept_does_not_judge_when_it_wakes(observer: Observer) -> None:
    held = elsewhere()
    assert not observer.gone(held)
    assert not observer.gone(held, after=3600.0)
    held = elsewhere()  # the holder wakes, too, and renews
    assert not any(observer.gone(held, after=RENEWED) for _ in range(5))


def test_what_is_not_known_after_one_look_is_unsure_until_it_is_renewed(
    observer: Observer,
) -> None:
    assert observer.watch.unsure() == []
    held = elsewhere()
    observer.gone(held)
    assert observer.watch.unsure() == [held]
    observer.gone(lease())
    assert observer.watch.unsure() == []
    observer.gone(held, after=1.0)
    observer.gone(elsewhere(), after=1.0)
    assert observer.watch.unsure() == []


def test_a_lease_is_overdue_from_its_expiry_on() -> None:
    assert overdue(lease()) == pytest.approx(-SECONDS, abs=60)
    assert overdue({**lease(), "expires": 0.0}) > 1e9


CLAIM = """
import sys
from pathlib import Path
from harness.sweep.ledger import Ledger
Ledger("s", Path(sys.argv[1]), None, {}).claim(["x"])
print("claimed", flush=True)
sys.stdin.read()
"""


def test_a_worker_in_another_process_namespace_keeps_its_attempt(tmp_path: Path) -> None:
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    try:
        tried = subprocess.run([*apart, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("this machine has no 'unshare' to make a process namespace with")
    if tried.returncode:
        pytest.skip(f"this machine makes no process namespace: {tried.stderr.strip()}")
    worker = subprocess.Popen(
        [*apart, sys.executable, "-c", CLAIM, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"claimed\n"
    ledger = Ledger("s", tmp_path, None, {})
    assert ledger.recover() == []
    assert ledger.claim(["x"]) is None
    assert ledger.standing().running == {"x"}
    worker.communicate()
