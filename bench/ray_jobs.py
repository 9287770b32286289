"""A Ray of the bench's own: installed once beside the project, started on free ports, stopped."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from bench.environments import programs_of
from polar.stack.ports import free_ports

REQUIREMENT = "ray[default]>=2.50,<3"


class RayMissing(Exception):
    """Ray could not be started; the message says why."""


class Ray:
    """A running head node."""

    def __init__(self, programs: Path, address: str) -> None:
        self._ray = str(programs / "ray")
        self._address = address

    def submit(self, *command: str) -> str:
        """`ray job submit` of a command; returns what it printed when it is over."""
        done = subprocess.run(
            [self._ray, "job", "submit", "--address", self._address, "--", *command],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise RayMissing(done.stdout[-1000:] + done.stderr[-1000:])
        return done.stdout


@contextmanager
def running() -> Iterator[Ray]:
    """Run a head node while the context lasts."""
    programs = programs_of("ray", REQUIREMENT)
    gcs, dashboard = free_ports(2)
    folder = tempfile.mkdtemp(prefix="ray-")  # short: Ray's sockets lie below it
    log = Path(folder) / "head.log"
    command = [
        *(str(programs / "ray"), "start", "--head", "--block", "--disable-usage-stats"),
        *("--node-ip-address", "127.0.0.1", "--port", str(gcs)),
        *("--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)),
        *("--temp-dir", folder, "--num-cpus", str(os.cpu_count() or 1)),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    address = f"http://127.0.0.1:{dashboard}"
    try:
        _wait(address, process, log)
        yield Ray(programs, address)
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{address}/api/jobs/", timeout=5, trust_env=False).is_success:
                return
        time.sleep(0.2)
    raise RayMissing(log.read_text(errors="replace")[-1000:])
