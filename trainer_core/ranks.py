"""The processes of one host that train together: who one is, and what they tell each other."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainer_core.errors import RankLost
from trainer_core.spec import Launch, Paths

_LONGEST_WAIT = timedelta(hours=1)
"""For another rank's numbers, in steps that all of them make."""
_TICK = 0.05


class Ranks:
    """A process that trains alone; `number` counts from 0, and rank 0 speaks for all.

    Every method is called by all ranks at the same point of the run.
    """

    number = 0
    count = 1

    @property
    def leads(self) -> bool:
        """Whether this is the rank that reports, saves and publishes."""
        return self.number == 0

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sum over all ranks of each value."""
        return list(values)

    def collect(self, value: Any) -> list[Any]:
        """The value of each rank, in their order."""
        return [value]

    def meet(self) -> None:
        """Go on when all ranks are here."""

    def leave(self) -> None:
        """Go on alone; the others may end."""


class ConnectedRanks(Ranks):
    """Ranks in one process group of torch: numbers travel by gloo, gradients on GPUs by nccl."""

    def __init__(self, number: int, count: int, store: Path, *, use_cpu: bool) -> None:
        import torch
        from torch import distributed

        self.number, self.count = number, count
        if not use_cpu:
            torch.cuda.set_device(number)
        self._store: Any = distributed.FileStore(str(store), count)
        self._meetings = 0
        distributed.init_process_group(
            "gloo" if use_cpu else "cpu:gloo,cuda:nccl",
            store=self._store,
            rank=number,
            world_size=count,
            timeout=_LONGEST_WAIT,
        )
        self._processes = self.collect(os.getpid())

    def sums(self, values: Sequence[float]) -> list[float]:
        """In double precision, the same to the last digit on every rank."""
        import torch

        tensor = torch.tensor(values, dtype=torch.float64)
        torch.distributed.all_reduce(tensor)
        return [float(value) for value in tensor]

    def collect(self, value: Any) -> list[Any]:
        """By pickle, among processes of this run alone."""
        from torch import distributed

        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value)
        return found

    def meet(self) -> None:
        """As long as they live: one may measure all rows, or write a checkpoint.

        Raises RankLost when one of them has ended instead of coming.
        """
        self._meetings += 1
        here = [f"meeting {self._meetings}, rank {number}" for number in range(self.count)]
        self._store.set(here[self.number], "here")
        while not self._store.check(here):
            for number, key in enumerate(here):
                if not (_lives(self._processes[number]) or self._store.check([key])):
                    raise RankLost(f"rank {number} ended while the others waited for it")
            time.sleep(_TICK)

    def leave(self) -> None:
        """Close the group, when nothing is told any more."""
        from torch import distributed

        distributed.destroy_process_group()
        del self._store


@dataclass(frozen=True)
class Seat:
    """The place of a process before the ranks are connected; `tell` speaks to their launcher."""

    number: int = 0
    count: int = 1
    store: Path | None = None
    tell: Callable[[dict[str, Any]], None] = lambda _: None

    def threads(self, launch: Launch) -> int | None:
        """This process's part of the threads that the run was given."""
        return None if launch.threads is None else max(1, launch.threads // self.count)

    def devices(self, launch: Launch) -> list[int | str]:
        """The GPUs that this process may see: each rank of several takes the one of its number."""
        return launch.devices[: self.count]

    def dress(self, launch: Launch) -> None:
        """Set the variables that libraries read of a rank of several; sockets stay on this host."""
        loopback = next((name for name in _interfaces() if name.startswith("lo")), "lo")
        threads = self.threads(launch) or max(1, (os.cpu_count() or 1) // self.count)
        os.environ |= {
            "RANK": str(self.number),
            "LOCAL_RANK": str(self.number),
            "WORLD_SIZE": str(self.count),
            "LOCAL_WORLD_SIZE": str(self.count),
            "OMP_NUM_THREADS": str(threads),
            "GLOO_SOCKET_IFNAME": loopback,
            "NCCL_SOCKET_IFNAME": loopback,
        }
        if not launch.devices:
            os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"  # else cpu:0, which torch cannot load to

    def join(self, launch: Launch, paths: Paths) -> Ranks:
        """Connect with the other ranks, which are started now, to read from these paths.

        Called when data are prepared: nobody waits for them with a device in hand.
        """
        if self.count == 1 or self.store is None:
            return Ranks()
        if self.number == 0:
            self.tell({"peers": paths.model_dump(mode="json")})
        return ConnectedRanks(self.number, self.count, self.store, use_cpu=not launch.devices)


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _lives(process: int) -> bool:
    """Whether a process of this run is there; their launcher collects those that have ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
