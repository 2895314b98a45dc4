"""A worker of several processes, which torchrun started: rank 0 leads, the others follow.

Rank 0 alone knows ledger and tracker. It tells the others which cell to train and, at each step,
whether to go on: all leave a cell together, be it for a signal or for a lost lease. What goes wrong
on all of them is the cell's crash, and all go on to the next. Where a rank fails alone, the others
wait for it in the next reduction: it ends with an error, and so torchrun ends them all.
"""

import logging
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.data.ranks import Ranks
from harness.sweep.study import execute
from harness.training.config import Config, parse

if TYPE_CHECKING:
    from harness.training.probes import Log
    from harness.training.train import Trained

FAREWELL_SECONDS = 60.0  # for torchrun to end us after rank 0


class LeaseLost(Exception):  # noqa: N818
    """Another has taken the attempt for lost: it must not go on."""


class Parted(Exception):  # noqa: N818
    """This rank failed, and others did not: the cell is released."""


class Order(NamedTuple):
    """What rank 0 tells the others to train."""

    source: Path  # of the study
    code: str  # that declares it
    config: dict[str, Any]
    data: Path


def heed(ranks: Ranks, leave: BaseException | None = None) -> None:
    """Raises on every rank what rank 0 gives, if anything."""
    if told := ranks.told(leave):
        raise told


def lead(ranks: Ranks, order: Order, config: Config, log: "Log") -> "Trained":
    """Trains the order on all ranks; Parted if only some of them fail."""
    ranks.told(order)
    return _together(ranks, config, order.data, log)


def follow(ranks: Ranks) -> None:
    """Trains what rank 0 says until it says that nothing is left; keeps nothing.

    Signals are for rank 0 to obey. SystemExit when rank 0 is gone.
    """
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)
    logging.getLogger("harness").setLevel(logging.ERROR)  # rank 0 has warned
    while order := _hear(ranks):
        execute(order.source, order.code)  # for its schemes
        try:
            config = parse(order.config, str(order.source))
            _together(ranks, config, order.data, lambda step, scalars: heed(ranks))
        except Parted:
            raise
        except Exception:
            continue  # on rank 0, too, which knows what to make of it


def _hear(ranks: Ranks) -> Order | None:
    try:
        return ranks.told(None)
    except RuntimeError:  # rank 0 is gone: torchrun is to see its exit code, not ours
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(FAREWELL_SECONDS)
        raise SystemExit(1) from None


def _together(ranks: Ranks, config: Config, data: Path, log: "Log") -> "Trained":
    from harness.training.train import train

    try:
        return train(config, data, log, ranks=ranks)
    except Exception as error:
        if ranks.met():
            raise
        raise Parted(f"rank {ranks.rank} of {ranks.count} failed alone") from error
