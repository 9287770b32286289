"""Are the CUDA devices of an attempt really free? The driver knows, Postgres does not."""

import logging
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from worker.lease import LeaseKeeper
from worker.target import ProvisioningFailed
from worker.waiting import Stopped

_log = logging.getLogger(__name__)
# What is killed gives its memory back within seconds; what stays longer stays.
PATIENCE = 30.0
# A process that computes takes more by its context alone; a sharing daemon (MPS) takes less.
NEGLIGIBLE_MB = 128


@dataclass(frozen=True)
class Occupant:
    """A process that holds memory of a device."""

    pid: int
    memory_mb: int

    def __str__(self) -> str:
        """Say it as a person would."""
        return f"process {self.pid} ({self.memory_mb} MiB)"


def parse_compute_apps(output: str) -> list[Occupant]:
    """Parse `pid, memory in MiB` lines; a process whose memory cannot be told is left out."""
    found = []
    for line in output.splitlines():
        pid, _, memory = (part.strip() for part in line.partition(","))
        if pid.isdigit() and memory.isdigit() and int(memory) > NEGLIGIBLE_MB:
            found.append(Occupant(int(pid), int(memory)))
    return found


def occupants(devices: Sequence[int]) -> list[Occupant]:
    """Return who computes on these CUDA devices; nobody where the driver does not answer."""
    command = [
        "nvidia-smi",
        f"--id={','.join(map(str, devices))}",
        "--query-compute-apps=pid,used_gpu_memory",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("nobody can tell who uses the devices %s: %s", devices, error)
        return []
    return parse_compute_apps(done.stdout)


def require_free(devices: Sequence[int], keeper: LeaseKeeper, patience: float = PATIENCE) -> None:
    """Wait until nobody computes on the devices, at most `patience` seconds.

    Raises ProvisioningFailed when somebody still does, and Stopped when the keeper says so.
    """
    deadline = time.monotonic() + patience
    while devices and (found := occupants(devices)):
        names, who = ", ".join(map(str, devices)), ", ".join(map(str, found))
        if time.monotonic() > deadline:
            raise ProvisioningFailed(
                f"GPU {names} of the host is not free: {who}; end it there, or drain the host"
            )
        _log.warning("GPU %s is not free yet: %s", names, who)
        keeper.pause(1.0)
        if keeper.stopping:
            raise Stopped
