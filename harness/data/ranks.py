"""The processes that train one cell together: torchrun starts them; without it there is one.

Torch is imported where it is used: commands ask for ranks before they need it.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from harness.errors import ConfigError

T = TypeVar("T")

MEETING_SECONDS = 120.0  # a rank that failed waits so long for others to fail with it
PATIENCE = timedelta(days=365)  # rank 0 may wait for the cells of other workers


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together, counted from 0 on over all nodes.

    What they say to each other beside gradients goes through groups on CPUs: `words`, which has
    time, and `meeting`, which has little. All ranks call the same methods in the same order; of
    one process, these return what they are given.
    """

    rank: int = 0
    count: int = 1
    nodes: int = 1
    words: Any = None
    meeting: Any = None

    def told(self, said: T) -> T:
        """What rank 0 says, on every rank."""
        if self.count == 1:
            return said
        from torch.distributed import broadcast_object_list

        broadcast_object_list(box := [said], src=0, group=self.words)
        return box[0]

    def gathered(self, own: T) -> list[T]:
        """What each rank has, in their order."""
        if self.count == 1:
            return [own]
        from torch.distributed import all_gather_object

        all_gather_object(box := [own] * self.count, own, group=self.words)
        return box

    def summed(self, tensor: Any) -> Any:
        """The sum of a tensor over ranks, on the CPU."""
        if self.count == 1:
            return tensor
        from torch.distributed import all_reduce

        all_reduce(whole := tensor.detach().cpu().clone(), group=self.words)
        return whole

    def met(self) -> bool:
        """Whether all ranks come here, within two minutes of each other."""
        if self.count == 1:
            return True
        from torch.distributed import barrier

        try:
            barrier(self.meeting)
        except RuntimeError:  # one is elsewhere, or gone
            return False
        return True

    def part(self) -> None:
        """There is no more to say."""
        if self.count > 1:
            from torch.distributed import destroy_process_group

            destroy_process_group()


ALONE = Ranks()


def join() -> Ranks:
    """This process's place among those of its torchrun, once all of them are there.

    ConfigError when a node has more of them than GPUs.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return ALONE
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if gpus := torch.cuda.device_count():
        if here > gpus:
            raise ConfigError(
                f"torchrun --nproc-per-node: {here} processes on {gpus} GPUs; start one for each"
            )
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if gpus else "gloo")  # Lightning's strategy finds it made
    words, meeting = (
        dist.new_group(backend="gloo", timeout=time)
        for time in (PATIENCE, timedelta(seconds=MEETING_SECONDS))
    )
    return Ranks(int(os.environ["RANK"]), count, count // here, words, meeting)
