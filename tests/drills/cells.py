"""The fault matrix as data: what breaks, how, and in which moment of a job's life.

A *wave* is one component with one fault; it hits jobs in all seven moments at once. A *cell* is
one of them: component × fault × moment.
"""

import os
import random
from dataclasses import dataclass
from typing import Literal

Moment = Literal["submit", "queue", "prepare", "training", "checkpoint", "publish", "cancel"]
MOMENTS: tuple[Moment, ...] = (
    *("submit", "queue", "prepare", "training"),
    *("checkpoint", "publish", "cancel"),
)
SERVICES = ("postgres", "valkey", "s3", "mlflow", "api")
PROCESSES = ("reconciler", "control", "worker", "supervisor", "trainer")
NETWORK = ("slow", "cut", "half_open", "reset")

FAULTS = {
    "kill": "`kill -9`; what the stack supervises starts again by itself",
    "freeze": "SIGSTOP of the whole process tree for 60 s, then SIGCONT",
    "slow": "every piece of data waits 100 ms in each direction, for 60 s",
    "cut": "connections are reset and new ones refused, for 60 s",
    "half_open": "data vanish and connections stay, for 60 s; then they are reset",
    "reset": "all connections are reset once",
    "disk_full": "no space left on its file system, for 60 s; SeaweedFS, whose index takes nothing"
    " more after that, is then started again",
    "failover": "stopped in order with all connections dropped, and started again",
    "flush": "FLUSHALL: every hint in the broker is gone",
    "hint_twice": "each hint comes four times",
    "hint_late": "hints are held back for 60 s and then come after all",
    "hint_never": "hints in the broker vanish, those of this wave before anybody read them",
    "clock_ahead": "the host's date is an hour ahead of the database's and the store's",
    "clock_behind": "the host's date is an hour behind",
}


@dataclass(frozen=True)
class Wave:
    """One component with one fault."""

    component: str
    fault: str

    @property
    def id(self) -> str:
        """How it is called in test names."""
        return f"{self.component}-{self.fault}"


def _waves() -> list[Wave]:
    everything = (*SERVICES, *PROCESSES)
    return [
        *(Wave(each, fault) for each in everything for fault in ("kill", "freeze")),
        *(Wave(each, fault) for each in SERVICES for fault in NETWORK),
        *(Wave(each, "disk_full") for each in DISKS),
        Wave("postgres", "failover"),
        *(Wave("valkey", fault) for fault in ("flush", "hint_twice", "hint_late", "hint_never")),
        *(Wave("host", fault) for fault in ("clock_ahead", "clock_behind")),
    ]


# Whose disk can be full, and the folder of the data folder that lies on it.
DISKS = {"postgres": "postgres", "valkey": "valkey", "s3": "s3", "trainer": "attempts"}
NO_DISK = {
    "mlflow": "its records are Postgres's and its artifacts the store's; it writes no file itself",
    "api": "writes only uploads on their way to the store; a job's life touches no file of it",
    "reconciler": "writes no file",
    "control": "writes no file of a job",
    "worker": "writes into the same folders of the host as supervisor and trainer",
    "supervisor": "shares the folders of its trainer: the row of the trainer fills both",
}
WAVES = _waves()
# Those that need a stack of their own: another date, or file systems of a few megabytes.
DISK_WAVES = [wave for wave in WAVES if wave.fault == "disk_full"]
CLOCK_WAVES = [wave for wave in WAVES if wave.component == "host"]
COMMON_WAVES = [wave for wave in WAVES if wave not in (*DISK_WAVES, *CLOCK_WAVES)]


def cells() -> list[tuple[str, str, Moment]]:
    """Return every cell of the matrix, in the order of the document."""
    return [(wave.component, wave.fault, moment) for wave in WAVES for moment in MOMENTS]


def seed() -> int:
    """Return `POLAR_DRILL_SEED`, or 0: it chooses CI's sixteenth, and every wave's moments."""
    return int(os.environ.get("POLAR_DRILL_SEED", "0"))


def sixteenth() -> list[Wave]:
    """Return the waves that `make test` runs: a sixteenth of those that share one stack."""
    chosen = random.Random(seed()).sample(COMMON_WAVES, len(COMMON_WAVES) // 16)  # noqa: S311
    return [wave for wave in COMMON_WAVES if wave in chosen]


def everything() -> bool:
    """Say whether this is `make drill`."""
    return os.environ.get("POLAR_DRILL") == "all"
