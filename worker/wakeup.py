"""Wakes the reconciler's loops: `NOTIFY polar_work` at a commit, or a stop signal."""

import logging
import threading

import psycopg
from sqlalchemy import make_url

from app.settings import Settings

CHANNEL = "polar_work"
_log = logging.getLogger(__name__)


class Wakeup:
    """Waits that end early when somebody wakes; one per thread, from `Bell.wakeup()`."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        """End the wait that is going on, or else the next one."""
        self._event.set()

    def wait(self, timeout: float) -> None:
        """Sleep until somebody rings, at most `timeout` seconds."""
        self._event.wait(timeout)
        self._event.clear()


class Bell:
    """Listens to Postgres in a thread of its own and rings every wakeup.

    While the database is away the loops live from their polls alone.
    """

    def __init__(self, settings: Settings) -> None:
        url = make_url(settings.database_url.get_secret_value())
        self._conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._wakeups: list[Wakeup] = []
        self.stopping = threading.Event()

    def wakeup(self) -> Wakeup:
        """Return a new wakeup that rings with this bell."""
        wakeup = Wakeup()
        self._wakeups.append(wakeup)
        return wakeup

    def ring(self) -> None:
        """Wake everybody."""
        for wakeup in self._wakeups:
            wakeup.ring()

    def stop(self) -> None:
        """Tell every loop to end after what it is doing."""
        self.stopping.set()
        self.ring()

    def listen(self) -> None:
        """Ring at every notification until stopped; the body of the listening thread."""
        wait = 0.5
        while not self.stopping.is_set():
            try:
                self._listen_once()
                wait = 0.5
            except psycopg.Error as error:
                _log.debug("not listening: %s", error)
                self.stopping.wait(wait)
                wait = min(2 * wait, 10.0)

    def _listen_once(self) -> None:
        with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=10) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            self.ring()  # something may have happened while nobody listened
            while not self.stopping.is_set():
                for _ in connection.notifies(timeout=1.0, stop_after=1):
                    self.ring()
