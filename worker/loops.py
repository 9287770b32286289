"""Loops over short steps: one that fails backs off alone, the others go on."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy.exc import InterfaceError, OperationalError

from worker.relay import BrokerAway
from worker.wakeup import Bell

LONGEST_BACKOFF = 30.0
_OUTAGES = (OperationalError, InterfaceError, BrokerAway)
_log = logging.getLogger(__name__)


class Health:
    """Since when the database has answered without a break, as this process saw it.

    An answer that took `slow` seconds is a break, too: a database that hangs refuses nobody, and
    nobody could renew meanwhile.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, slow: float = float("inf")
    ) -> None:
        self._clock = clock
        self._slow = slow
        self._broken = False
        self._back_at = float("-inf")

    def broke(self) -> None:
        """The database did not answer."""
        self._broken = True

    def answered(self, took: float = 0.0) -> None:
        """The database answered after `took` seconds."""
        if self._broken or took >= self._slow:
            self._broken, self._back_at = False, self._clock()

    def steady_for(self, seconds: float) -> bool:
        """Say whether the database has answered for so long; true for a process that just began."""
        return not self._broken and self._clock() - self._back_at >= seconds


@dataclass
class Step:
    """Work of at most a second or so; `work` returns how much it did, and runs again at once
    while that is not zero."""

    name: str
    work: Callable[[], int]
    failures: int = 0
    not_before: float = 0.0


@dataclass
class Loop:
    """A thread's steps, in order, whenever the bell rings or `poll` seconds have passed."""

    name: str
    steps: Sequence[Step]
    bell: Bell
    poll: float
    health: Health = field(default_factory=Health)

    def start(self) -> threading.Thread:
        """Run in a thread of its own until the bell says stop."""
        thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        thread.start()
        return thread

    def run(self) -> None:
        """Run until the bell says stop."""
        wakeup = self.bell.wakeup()
        while not self.bell.stopping.is_set():
            if not sum(self._once(step) for step in self.steps):
                wakeup.wait(self.poll)

    def _once(self, step: Step) -> int:
        if self.bell.stopping.is_set() or time.monotonic() < step.not_before:
            return 0
        began = time.monotonic()
        try:
            done = step.work()
        except Exception as error:  # noqa: BLE001 - the process's one; no step may stop the others
            self._failed(step, error)
            return 0
        self.health.answered(time.monotonic() - began)
        step.failures = 0
        return done

    def _failed(self, step: Step, error: Exception) -> None:
        step.failures += 1
        wait = min(0.5 * 2 ** (step.failures - 1), LONGEST_BACKOFF)
        step.not_before = time.monotonic() + wait
        if isinstance(error, _OUTAGES):
            if not isinstance(error, BrokerAway):
                self.health.broke()
            _log.warning("%s: %s; again in %.1f s", step.name, _first_line(error), wait)
        else:
            _log.error("%s failed; again in %.1f s", step.name, wait, exc_info=error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
