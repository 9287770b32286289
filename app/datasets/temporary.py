"""Private folders of uploads on their way to the store; each is locked by the process that fills
it, so that others see whether it lives, also from another container."""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"[0-9a-f]{16}")
_STALE = 24 * 3600


@contextlib.contextmanager
def temporary_folder(home: Path) -> Iterator[Path]:
    """Yield a private folder below `uploads/`, removed in the end whatever happens."""
    folder = _uploads(home) / secrets.token_hex(8)
    begun = folder.with_name(f".{folder.name}")  # gets its name when it is locked
    begun.mkdir(mode=0o700)
    try:
        with _opened(begun) as lock:
            with contextlib.suppress(OSError):  # where nothing can be locked, its age counts
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            begun.rename(folder)
            yield folder
    finally:
        for left in (folder, begun):
            shutil.rmtree(left, ignore_errors=True)


def clean_uploads(home: Path) -> int:
    """Remove what processes that died have left behind; returns how many uploads."""
    return sum(_removed(folder) for folder in _uploads(home).iterdir())


def _uploads(home: Path) -> Path:
    folder = home / "uploads"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _removed(folder: Path) -> bool:
    """Remove the folder if its process has ended; says whether it was removed."""
    try:
        with _opened(folder) as lock:
            if not _is_left(folder, lock):
                return False
            shutil.rmtree(folder, ignore_errors=True)
            return True
    except OSError:  # it is gone, or none of ours
        return False


def _is_left(folder: Path, lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return _is_old(folder)
    # Others were not locked yet, or are an earlier version's.
    return bool(_NAME.fullmatch(folder.name)) or _is_old(folder)


def _is_old(folder: Path) -> bool:
    return folder.stat().st_mtime < time.time() - _STALE
