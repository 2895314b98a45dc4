"""Leases: which process works on an attempt, and whether it is still alive.

The kernel tells whether a process of this host, boot and process namespace lives. Any other process
shows that it lives by renewing its lease. The clocks of two hosts may differ by minutes, therefore
an observer measures on its own clock how long a lease has stood unchanged before its eyes.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

Lease = Mapping[str, Any]

SECONDS, RENEWED = 120.0, 20.0  # how long a lease holds, how often it is renewed


def lease() -> dict[str, Any]:
    """This process's lease, each time with another `renewal`. `expires` is by this host's clock: a
    hint for people, and for observers of older versions."""
    pid = os.getpid()
    state = _state(pid)
    return {
        **_here(),
        "pid": pid,
        "started": state.started if state else "",
        "expires": time.time() + SECONDS,
        "renewal": uuid.uuid4().hex,
    }


def belongs(lease: Lease, pids: Collection[int]) -> bool:
    """Whether the holder is one of these processes of this namespace."""
    return _near(lease) and lease["pid"] in pids


def dead(lease: Lease) -> bool:
    """Whether the holder is a process of this namespace that is gone."""
    return _near(lease) and not _alive(lease)


def overdue(lease: Lease) -> float:
    """Seconds since the lease's expiry by this host's clock, which may differ from the holder's."""
    return float(time.time() - lease["expires"])


@contextmanager
def renewing(renew: Callable[[], None], lost: threading.Event) -> Iterator[None]:
    """Calls `renew` in a thread, again and again until the block ends or the lease is lost."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(RENEWED) and not lost.is_set():
            try:
                renew()
            except Exception:  # a busy database; the lease outlasts five renewals
                continue

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Seen(NamedTuple):
    lease: Lease
    unchanged: float  # seconds, between looks
    renewed: bool  # at least once before our eyes


class Watch:
    """An observer of leases, by number.

    Of the time between two looks no more than RENEWED counts: an observer that slept longer may
    have slept with the holder, on the same laptop, and must not judge when it wakes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looked = clock, clock()
        self._seen: dict[int, _Seen] = {}

    def gone(self, leases: Mapping[int, Lease]) -> list[int]:
        """Looks at all leases; the numbers of those whose holders are dead or silent too long."""
        now = self._clock()
        passed = min(now - self._looked, RENEWED)
        self._looked, before, self._seen = now, self._seen, {}
        found = []
        for number, lease in leases.items():
            seen = before.get(number)
            if seen is None:
                seen = _Seen(lease, 0.0, renewed=False)
            elif seen.lease == lease:
                seen = seen._replace(unchanged=seen.unchanged + passed)
            else:
                seen = _Seen(lease, 0.0, renewed=True)
            self._seen[number] = seen
            if dead(lease) if _near(lease) else seen.unchanged >= SECONDS:
                found.append(number)
        return found

    def unsure(self) -> list[Lease]:
        """Leases that were seen at the last look and that only more looks can judge: the holder is
        out of sight, and has renewed nothing yet."""
        unjudged = [s.lease for s in self._seen.values() if not s.renewed and s.unchanged < SECONDS]
        return [lease for lease in unjudged if not _near(lease)]


def _here() -> dict[str, str]:
    """Where a process number means one process: the host, its boot and the process namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # no Linux
        space = ""
    return {
        "host": socket.gethostname(),
        "boot": boot.read_text().strip() if boot.exists() else "",
        "space": space,
    }


def _near(lease: Lease) -> bool:
    """Whether we see the holder's process. Leases of versions that knew no namespace are not near:
    they may be of another."""
    return all(lease.get(name) == value for name, value in _here().items())


def _alive(lease: Lease) -> bool:
    """Whether a near holder lives; its number may have been given to another process."""
    try:
        os.kill(lease["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # of another user
    state = _state(lease["pid"])
    return state is None or (state.letter != "Z" and state.started == lease["started"])


class _State(NamedTuple):
    letter: str
    started: str  # in the kernel's ticks


def _state(pid: int) -> _State | None:
    """What the kernel tells of a process; None where it does not, as of another's /proc."""
    try:
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            return None
        # The second field is the name in brackets, which may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _State(fields[0], fields[19])
