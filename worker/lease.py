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

    @property
    def pause(self) -> bool:
        """Whether the work is to wait."""
        ...

    @property
    def hand_back(self) -> bool:
        """Whether the host is wanted back: the work goes on elsewhere."""
        ...


class LeaseKeeper:
    """Renews every `lease_renew` seconds and looks every `poll` seconds in between.

    `cancelled`, `paused`, `handed_back`, `lost` and `abandoned` are set once and stay. While the
    database is away nothing is set: the holder goes on. `last_resort` is called when the lease is
    lost and the holder has not stopped half a lease later.
    """

    def __init__(
        self,
        settings: Settings,
        renew: Callable[[Session], Wanted],
        look: Callable[[Session], Wanted],
        stack: Identity | None,
        last_resort: Callable[[], None] | None = None,
    ) -> None:
        self.cancelled = threading.Event()
        self.paused = threading.Event()
        self.handed_back = threading.Event()
        self.lost = threading.Event()
        self.abandoned = threading.Event()
        self._changed = threading.Event()
        self._settings = settings
        self._renew = renew
        self._look = look
        self._stack = stack
        self._last_resort = last_resort
        self._stopping_since: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    @property
    def stopping(self) -> bool:
        """Whether the trainer must not go on, for whatever reason."""
        return self._stopping_since is not None

    @property
    def stopping_for(self) -> float:
        """Seconds since the first of the flags was set; 0 while none is."""
        return 0.0 if self._stopping_since is None else time.monotonic() - self._stopping_since

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

    def lose(self) -> None:
        """Say that the lease was found to be someone else's."""
        self._set(self.lost)

    def _set(self, event: threading.Event) -> None:
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
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
        if (
            self._last_resort
            and self.lost.is_set()
            and not self._stop.wait(self._settings.lease / 2)
        ):
            self._last_resort()

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
        for wish, flag in (
            (wanted.cancel, self.cancelled),
            (wanted.pause, self.paused),
            (wanted.hand_back, self.handed_back),
        ):
            if wish:
                self._set(flag)
        return True
