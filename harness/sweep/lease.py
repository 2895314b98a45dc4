"""Who is working on an attempt, and whether they still are."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SECONDS, RENEWED = 120.0, 20.0  # how long a lease holds, how often it is renewed


def lease() -> dict[str, Any]:
    """This process's lease from now on: host, boot, process with its start, and expiry."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid": pid,
        "started": _started(pid),
        "expires": time.time() + SECONDS,
    }


def holds(lease: Mapping[str, Any]) -> bool:
    """Whether the holder may still be at work. On this host a dead process is known at once, even
    when its number has been given to another; elsewhere the expiry decides."""
    if lease["host"] == socket.gethostname():
        same = lease["boot"] == _boot() and _started(lease["pid"]) == lease["started"]
        if not same or not _alive(lease["pid"]):
            return False
    return bool(time.time() < lease["expires"])


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def _started(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty where the system does not tell."""
    try:
        # The second field is the name in brackets, which may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    try:
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
