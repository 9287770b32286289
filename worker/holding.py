"""Marks folders of this host's caches as in use, and removes those that nobody uses.

A user holds a shared lock on `.<name>.use` beside the folder until its process ends, however that
happens; who removes the folder takes the lock exclusively, or leaves it alone. So what is in use
stays, and what is being removed is seen as gone.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

# `.lock` is the trainer's: it prepares one folder at a time.
_LOCK, _FILLING = ".use", ".filling"
_held: dict[Path, int] = {}


def hold(folder: Path) -> Path:
    """Keep the folder, which need not exist yet, for as long as this process lives; returns it.

    Waits while it is being removed. Its last use is the time of its lock file.
    """
    if folder not in _held:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _held[folder] = _locked(_lock_file(folder), fcntl.LOCK_SH)
    os.utime(_lock_file(folder))
    return folder


def drop(folder: Path) -> bool:
    """Remove the folder unless someone holds it; returns whether it is gone."""
    try:
        descriptor = _locked(_lock_file(folder), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    try:
        shutil.rmtree(folder, ignore_errors=True)
        gone = not folder.exists()
        if gone:
            _lock_file(folder).unlink(missing_ok=True)
        return gone
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone(folder: Path, patience: float) -> Iterator[None]:
    """Fill the folder while nobody else does; each lock ends with its process.

    Waits for whoever fills it, and after `patience` seconds no longer: what fills it must bear
    that, and rename what it made.
    """
    path = folder.with_name(f".{folder.name}{_FILLING}")
    deadline = time.monotonic() + patience
    descriptor = None
    while descriptor is None and time.monotonic() < deadline:
        try:
            descriptor = _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
    try:
        yield
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def last_used(folder: Path) -> float:
    """Return when the folder was last held, or else changed; seconds since 1970."""
    for path in (_lock_file(folder), folder):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def entries(folder: Path) -> Iterator[Path]:
    """Yield what is kept in a cache, without locks and without what is being written."""
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_LOCK}")


def _locked(path: Path, mode: int) -> int:
    """Return an open descriptor that holds the lock; raises OSError when it is not to be had."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, mode)
            if _is_same(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last owner removed it meanwhile: lock the one that is there


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
