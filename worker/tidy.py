"""Removes from a host's data folder what no attempt will ever read again."""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from app.db import transaction
from app.settings import Settings
from worker.holding import drop, entries, last_used

DAY = 86_400.0
CACHES = ("data", "models", "s3")  # what is fetched; what libraries compile is small
EVERY, AGAIN_AFTER = 3600.0, 60.0
KEEP = {"attempts": 3 * DAY, "preparations": 3 * DAY, "prepared": 7 * DAY, "supervisors": 14 * DAY}
_log = logging.getLogger(__name__)

_BUSY = text(
    """
    SELECT a.id FROM attempts a JOIN jobs j ON j.id = a.job_id
        WHERE a.released_at IS NULL OR j.finished_at IS NULL
    UNION SELECT id FROM jobs WHERE finished_at IS NULL
    UNION SELECT id FROM plans WHERE status IN ('waiting', 'running')
    UNION SELECT key FROM plans WHERE key IS NOT NULL AND expires_at > now()
    UNION SELECT prepared_key FROM jobs WHERE finished_at IS NULL AND prepared_key IS NOT NULL
    """
)


def tidy(home: Path, now: float) -> int:
    """Remove old folders and logs that belong to no open job; returns how many went.

    Prepared data that a process of this host holds stay, whatever Postgres says. Gigabytes take
    their time: no transaction is open meanwhile. What is old enough to go is begun by nobody.
    """
    with transaction() as session:
        busy = set(session.execute(_BUSY).scalars())
    candidates = [*_old(home / "attempts", now), *_old(home / "preparations", now)]
    candidates += _old(home / "logs" / "supervisors", now)
    gone = sum(_remove(path) for path in candidates if path.name.partition(".")[0] not in busy)
    _remove_drafts(home / "prepared", now)
    limit = now - KEEP["prepared"]
    prepared = (p for p in entries(home / "prepared") if last_used(p) < limit)
    return gone + sum(drop(path) for path in prepared if path.name not in busy)


def tidy_cache(cache: Path, most: int, now: float) -> int:
    """Remove what was not used longest until the rest has at most so many bytes; returns how many.

    What a process of this host holds stays. Drafts of downloads that broke off go after a day.
    """
    kinds = [cache / name for name in CACHES]
    for kind in kinds:
        _remove_drafts(kind, now)
    found = sorted((last_used(path), _size(path), path) for kind in kinds for path in entries(kind))
    total, gone = sum(size for _, size, _ in found), 0
    for _, size, path in found:
        if total <= most:
            break
        if drop(path):
            total, gone = total - size, gone + 1
    return gone


def _remove_drafts(folder: Path, now: float) -> None:
    for draft in folder.glob(".*"):
        if not draft.name.endswith((".lock", ".use")) and _modified(draft, now) < now - DAY:
            _remove(draft)


def _size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            size += path.lstat().st_size
    return size


def _old(folder: Path, now: float) -> Iterator[Path]:
    limit = now - KEEP[folder.name]
    return (path for path in _entries(folder) if _modified(path, now) < limit)


def _entries(folder: Path) -> Iterable[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else ()


def _modified(path: Path, now: float) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed meanwhile
        return now


def _remove(path: Path) -> bool:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    return not path.exists()


def keep_tidy(settings: Settings) -> threading.Thread:
    """Tidy the data folder now and every hour, in a thread of its own."""
    thread = threading.Thread(target=_forever, args=[settings], name="tidy", daemon=True)
    thread.start()
    return thread


def _forever(settings: Settings) -> None:
    while True:
        try:
            removed = tidy(settings.home, time.time())
            removed += tidy_cache(settings.home / "cache", settings.cache_max_bytes, time.time())
            _log.info("tidied %d folders and logs", removed)
        except (SQLAlchemyError, OSError) as error:
            _log.warning("not tidied: %s", type(error).__name__)
            time.sleep(AGAIN_AFTER)
        else:
            time.sleep(EVERY)
