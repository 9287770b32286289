"""Keeps a lease alive in a thread of its own, and hears what the job's owner wants."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from app.attempts.store import LeaseLost
from app.db import transaction
from app.settings import Settings
from worker.durably import is_away
from worker.proctree import Identity, is_alive

_log = logging.getLogger(__name__)


class Wanted(Protocol):
    """What a renewal answers."""

    @property
    def cancel(self) -> bool:
        """Whether the work is no longer wanted."""
        ...


class LeaseKeeper:
    """Renews every `lease_renew` seconds and looks every `poll` seconds in between.

    `cancelled`, `lost` and `abandoned` are set once and stay. While the database is away nothing is
    set: the holder goes on.
    """

    def __init__(
        self,
        settings: Settings,
        renew: Callable[[Session], Wanted],
        look: Callable[[Session], Wanted],
        stack: Identity | None,
    ) -> None:
        self.cancelled = threading.Event()
        self.lost = threading.Event()
        self.abandoned = threading.Event()
        self._changed = threading.Event()
        self._settings = settings
        self._renew = renew
        self._look = look
        self._stack = stack
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    @property
    def stopping(self) -> bool:
        """Whether the trainer must not go on, for whatever reason."""
        return self.cancelled.is_set() or self.lost.is_set() or self.abandoned.is_set()

    def start(self) -> None:
        """Begin; the lease was taken just now."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the lease runs out by itself unless the attempt is over."""
        self._stop.set()
        self._thread.join(timeout=5.0)

    def pause(self, seconds: float) -> None:
        """Let time pass; ends early when one of the flags was set or `wake` was called."""
        if self.stopping:
            time.sleep(seconds)
        elif self._changed.wait(seconds):
            self._changed.clear()  # the flags themselves stay: callers look at them

    def wake(self) -> None:
        """End the pause that is going on, or else the next one."""
        self._changed.set()

    def abandon(self) -> None:
        """Say that the trainer must stop because we are to end."""
        self._set(self.abandoned)

    def _set(self, event: threading.Event) -> None:
        event.set()
        self.wake()

    def _run(self) -> None:
        renewed = time.monotonic()
        while not self._stop.wait(self._settings.poll) and not self.lost.is_set():
            if self._stack is not None and not is_alive(self._stack):
                self._set(self.abandoned)
            due = time.monotonic() - renewed >= self._settings.lease_renew
            if self._ask(self._renew if due else self._look) and due:
                renewed = time.monotonic()

    def _ask(self, question: Callable[[Session], Wanted]) -> bool:
        try:
            with transaction() as session:
                wanted = question(session)
        except LeaseLost as lost:
            if not self._stop.is_set():
                _log.warning("%s", lost)
                self._set(self.lost)
            return False
        except (DBAPIError, PoolTimeout) as error:
            if not is_away(error):
                raise
            return False
        if wanted.cancel:
            self._set(self.cancelled)
        return True
