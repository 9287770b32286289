"""One trainer process: forked warm or started cold, watched, stopped, killed with its tree."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trainer_core.launch import SECRETS_FD
from worker import forks, lifeline
from worker.environment import ATTEMPT_MARK, clean_environment
from worker.proctree import Identity, identify, is_alive, kill_tree, send
from worker.target import ProvisioningFailed

How = Literal["warm", "cold"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Order:
    """A `python -m trainer_core` to run: its arguments, its mark, its folder and its secrets."""

    argv: Sequence[str]
    mark: str
    cwd: Path
    log: Path
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    threads: int = 1
    bounds: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the trainer's variables; none of them is secret."""
        return clean_environment() | {
            **self.bounds,
            ATTEMPT_MARK: self.mark,
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": str(self.threads),
        }


@dataclass(frozen=True)
class Exit:
    """The end of a process; the code is None where nobody can tell it any more."""

    code: int | None


class TrainerProcess:
    """A trainer that dies with this process; used from one thread."""

    def __init__(
        self,
        identity: Identity,
        mark: str,
        source: "forks.Fork | subprocess.Popen[bytes]",
        writing_end: int,
    ) -> None:
        self.identity = identity
        self.how: How = "warm" if isinstance(source, forks.Fork) else "cold"
        self.started = time.monotonic()
        self._mark = mark
        self._source = source
        self._lifeline = writing_end

    def poll(self) -> Exit | None:
        """Return how the process ended; None while it runs."""
        code = self._source.poll()
        if code is not None:
            return Exit(code)
        if isinstance(self._source, forks.Fork) and self._source.lost:
            return None if is_alive(self.identity) else Exit(None)
        return None

    def wait(self, timeout: float) -> Exit | None:
        """Wait for the end; None when it did not come."""
        deadline = time.monotonic() + timeout
        while (ended := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return ended

    def terminate(self) -> None:
        """Ask the trainer to stop whole; its helpers are its own business."""
        send(self.identity, signal.SIGTERM)

    def kill(self, timeout: float = 10.0) -> None:
        """Kill the whole tree; raises ProvisioningFailed when something is left."""
        left = kill_tree(self.identity, self._mark, timeout)
        self.wait(2.0)
        if left:
            pids = ", ".join(str(who.pid) for who in left)
            raise ProvisioningFailed(f"processes that could not be killed: {pids}")

    def close(self) -> None:
        """Let go of the descriptors; what still runs is killed by that."""
        if isinstance(self._source, forks.Fork):
            self._source.close()
        with suppress(OSError):
            os.close(self._lifeline)


def start(order: Order, warm_socket: Path | None) -> TrainerProcess:
    """Start a trainer, warm where the fork server serves it, else cold.

    Raises ProvisioningFailed.
    """
    if warm_socket is not None:
        try:
            return _start_warm(order, warm_socket)
        except forks.NoWarmServer as refused:
            _log.info("starting cold: %s", refused)
    return _start_cold(order)


def _start_warm(order: Order, path: Path) -> TrainerProcess:
    request = forks.ForkRequest(
        "trainer", list(order.argv), str(order.cwd), str(order.log), order.environment()
    )
    secrets = forks.memory_file(order.secrets)
    reading, writing = lifeline.make()
    try:
        forked = forks.fork(path, request, [secrets, reading])
    except forks.NoWarmServer:
        os.close(writing)
        raise
    finally:
        os.close(secrets)
        os.close(reading)
    return TrainerProcess(forked.identity, order.mark, forked, writing)


def _start_cold(order: Order) -> TrainerProcess:
    secrets = forks.memory_file(order.secrets)
    reading, writing = lifeline.make()
    try:
        with order.log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trainer_core", *order.argv],
                cwd=order.cwd,
                env=order.environment() | {SECRETS_FD: str(secrets)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(secrets, reading),
                start_new_session=True,
            )
        lifeline.bind(reading, process.pid)
    except OSError as error:
        os.close(writing)
        raise ProvisioningFailed(f"the trainer could not be started: {error}") from error
    finally:
        os.close(secrets)
        os.close(reading)
    who = identify(process.pid) or Identity(process.pid, 0)
    return TrainerProcess(who, order.mark, process, writing)
