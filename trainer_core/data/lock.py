"""One process at a time for one folder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trainer_core.errors import DataUnavailable

_WAIT_SECONDS = 3600.0


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` (which need not exist); wait for whoever else holds it.

    The lock dies with its process. Raises DataUnavailable after an hour of waiting.
    """
    path = folder.with_name(f".{folder.name}.lock")
    deadline = time.monotonic() + _WAIT_SECONDS
    while (lock := _acquire(path)) is None:
        if time.monotonic() > deadline:
            raise DataUnavailable(
                f"another process has been preparing {folder.name} for an hour: stop it"
            )
        time.sleep(0.1)
    with lock:
        try:
            yield
        finally:
            path.unlink()


def _acquire(path: Path) -> IO[str] | None:
    """The locked file; None while another holds it, or has just removed it."""
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    lock.close()
    return None
