"""What a host does about attempts that are over and still hold something of it.

Only their host can tell whether a holder that went silent, and its trainer, are gone or just stand
still. It ends what is left of them, and gives the devices back once nothing is.
"""

import logging
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.attempts.service import release
from app.db import transaction
from app.settings import Settings
from worker.hand_back import supervisors
from worker.proctree import Identity, is_alive, kill_tree, send
from worker.registration import NotReady
from worker.targets.local import LocalTarget

# A tree of processes dies within milliseconds of SIGKILL, or hangs in a driver for long.
KILL_WITHIN = 2.0
AGAIN_AFTER = 60.0
_log = logging.getLogger(__name__)

# What its holder may still do after the end is done before its lease runs out.
_NOBODYS = "finished_at IS NOT NULL AND (lease_expires_at IS NULL OR lease_expires_at < now())"
_LEFT = text(
    f"""
    SELECT id, handle FROM attempts WHERE worker_id = :worker AND released_at IS NULL
        AND {_NOBODYS} ORDER BY id LIMIT 100
    """  # noqa: S608 - constants
)
_LOST_MEANWHILE = text(
    f"""
    SELECT a.id, a.handle FROM attempts a JOIN workers w ON w.id = a.worker_id
    WHERE w.id = :worker AND {_NOBODYS}
        AND (a.released_at IS NULL OR a.finished_at > w.seen_at)
    """  # noqa: S608 - constants
)


class Sweeper:
    """Ends what is left of this host's attempts that are over, and releases them."""

    def __init__(self, settings: Settings, worker_id: str) -> None:
        self._settings = settings
        self._worker_id = worker_id
        self._target = LocalTarget(settings)
        self._not_before: dict[str, float] = {}

    def sweep(self) -> int:
        """Look once; returns how many attempts gave their devices back."""
        with transaction() as session:
            left = session.execute(_LEFT, {"worker": self._worker_id}).all()
        due = [row for row in left if time.monotonic() >= self._not_before.get(row.id, 0.0)]
        return sum(self._settle(row.id, row.handle) for row in due)

    def before_offering(self, session: Session) -> None:
        """End what was given up while this host was away; the caller holds the host's row.

        Raises NotReady when something withstands it.
        """
        for row in session.execute(_LOST_MEANWHILE, {"worker": self._worker_id}).all():
            if left := self._kill(row.id, row.handle):
                raise NotReady(f"{row.id} is over, and {_words(left)}")

    def _settle(self, attempt_id: str, handle: Mapping[str, Any] | None) -> bool:
        left = self._kill(attempt_id, handle)
        error = _words(left) if left else None
        with transaction() as session:
            release(session, attempt_id, error)
        if error is None:
            self._not_before.pop(attempt_id, None)
            _log.info("%s gave its devices back", attempt_id)
            return True
        self._not_before[attempt_id] = time.monotonic() + AGAIN_AFTER
        _log.warning("%s keeps its devices: %s", attempt_id, error)
        return False

    def _kill(self, attempt_id: str, handle: Mapping[str, Any] | None) -> set[Identity]:
        """Kill supervisor and trainer of an attempt; returns what withstands it.

        The supervisor first: one that only stood still would start a trainer after our look.
        """
        holders = set(supervisors(self._settings, f"{attempt_id}.log"))
        for who in holders:
            _log.warning("killing the supervisor %d of %s, which is over", who.pid, attempt_id)
            send(who, signal.SIGKILL)
        left = kill_tree(self._root(attempt_id, handle), attempt_id, KILL_WITHIN)
        deadline = time.monotonic() + KILL_WITHIN
        while any(is_alive(who) for who in holders) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left | {who for who in holders if is_alive(who)}

    def _root(self, attempt_id: str, handle: Mapping[str, Any] | None) -> Identity | None:
        noted = self._target.noted(attempt_id)
        data = noted.data if noted else (handle or {}).get("data")
        return Identity(int(data["pid"]), int(data["start"])) if data else None


def _words(left: set[Identity]) -> str:
    pids = ", ".join(str(who.pid) for who in sorted(left, key=lambda who: who.pid))
    return f"processes that could not be killed: {pids}"


def keep_sweeping(sweeper: Sweeper, every: float) -> threading.Thread:
    """Sweep every so many seconds in a thread of its own."""
    thread = threading.Thread(target=_forever, args=[sweeper, every], name="sweep", daemon=True)
    thread.start()
    return thread


def _forever(sweeper: Sweeper, every: float) -> None:
    while True:
        try:
            sweeper.sweep()
        except (SQLAlchemyError, OSError) as error:
            _log.warning("not swept: %s", type(error).__name__)
        time.sleep(every)
