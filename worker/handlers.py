"""What hints ask for: each handler starts a detached supervisor and returns at once.

The supervisor claims, so a hint that comes twice starts a process that finds nothing to do.
"""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from app.housekeeping.service import keep_house
from app.settings import get_settings
from app.storage import get_store
from worker import forks
from worker.environment import clean_environment

_log = logging.getLogger(__name__)


def run(attempt_id: str) -> None:
    """Supervise an attempt that was placed on this host."""
    start_supervisor("attempt", attempt_id)


def prepare(job_id: str) -> None:
    """Supervise the preparation of a job's data."""
    start_supervisor("prepare", job_id)


def plan(plan_id: str) -> None:
    """Supervise the making of a plan."""
    start_supervisor("plan", plan_id)


def housekeeping() -> None:
    """Throw away what nobody needs any more."""
    keep_house(get_store())


HANDLERS: Mapping[str, Callable[..., None]] = {
    "prepare": prepare,
    "plan": plan,
    "run": run,
    "housekeeping": housekeeping,
}


def start_supervisor(kind: str, identifier: str) -> int:
    """Start a supervisor that outlives this process, warm or cold; returns its pid."""
    settings = get_settings()
    log = settings.home / "logs" / "supervisors" / f"{identifier}.log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = forks.socket_path(settings)
    for server in (forks.supervisors_path(path), path):
        try:
            return _fork(server, [kind, identifier], log)
        except forks.NoWarmServer as refused:
            _log.info("supervisor of %s does not start warm: %s", identifier, refused)
    return _spawn([kind, identifier], log)


def _fork(path: Path, argv: list[str], log: Path) -> int:
    request = forks.ForkRequest("supervisor", argv, str(log.parent), str(log), clean_environment())
    private = forks.memory_file(os.environ)
    try:
        forked = forks.fork(path, request, [private])
    finally:
        os.close(private)
    forked.close()
    return forked.identity.pid


def _spawn(argv: list[str], log: Path) -> int:
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.supervisor", *argv],
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Collected when it ends: this process may live for months.
    threading.Thread(target=process.wait, name="supervisor", daemon=True).start()
    return process.pid
