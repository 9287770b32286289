"""Watches one trainer: carries its facts, obeys its owner, and ends it when it must not go on."""

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.attempts.service import Ending, LeaseLost
from app.db import transaction
from app.jobs.lifecycle import FailureReason
from app.settings import Settings
from trainer_core.events import RunEvent
from worker.carrier import Carrier
from worker.durably import durably, is_away
from worker.endings import oom_kills
from worker.lease import LeaseKeeper
from worker.process import Exit, TrainerProcess
from worker.target import TargetError

TICK = 0.05
FIRST_SIGN = 20.0
_DATABASE_PAUSE = 1.0
_log = logging.getLogger(__name__)


class NoSignOfLife(Exception):
    """A warm trainer did nothing at all: start it cold."""


class Watch:
    """One trainer from its start to its end; `verdict` says why we ended it, if we did.

    `on_event` sees each event after it was committed.
    """

    def __init__(
        self,
        settings: Settings,
        keeper: LeaseKeeper,
        carrier: Carrier,
        process: TrainerProcess,
        on_event: Callable[[RunEvent], None],
    ) -> None:
        self._settings = settings
        self._keeper = keeper
        self._carrier = carrier
        self._process = process
        self._on_event = on_event
        self._events_file = carrier.events_file
        self._size = 0
        self._last_sign = time.monotonic()
        self._next_carry = 0.0
        self._kill_at: float | None = None
        self.verdict: Ending | None = None
        self.time_left: float | None = None
        self.cleanup_error: str | None = None
        self._kills = deque([oom_kills()] * 2, maxlen=2)
        self._counted_kills = time.monotonic()

    def until_end(self) -> Exit:
        """Return how the trainer ended, its whole tree being gone.

        Raises LeaseLost after killing it, NoSignOfLife likewise, and TargetErrors when a trainer
        withstands SIGKILL. A helper of one that has ended may withstand it: `cleanup_error` says
        so, and changes nothing about how the trainer ended.
        """
        while (ended := self._process.poll()) is None:
            busy = self._carry()
            self._look()
            self._police()
            if not busy:
                self._keeper.pause(TICK)
        try:
            self._process.kill()  # helpers that outlive the trainer
        except TargetError as error:
            self.cleanup_error = str(error)
        if self._keeper.lost.is_set():
            raise LeaseLost("the trainer was killed")
        return ended

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed something for lack of memory within the last two seconds.

        Its count is the control group's: an earlier kill was another process.
        """
        return oom_kills() > self._kills[0]

    def drain(self) -> None:
        """Carry what is left, however long the database is away; raises DatabaseAway at last."""
        while True:
            load = durably(
                lambda session: self._carrier.carry(session, final=True),
                give_up=self._keeper.abandoned.is_set,
            )
            for event in self._carrier.done(load):
                self._on_event(event)
            if load.empty:
                return

    def _carry(self) -> bool:
        """Write one batch if the database answers; says whether there may be more."""
        if time.monotonic() < self._next_carry or self._keeper.lost.is_set():
            return False
        try:
            with transaction() as session:
                load = self._carrier.carry(session)
        except (DBAPIError, PoolTimeout) as error:
            if not is_away(error):
                raise
            self._next_carry = time.monotonic() + _DATABASE_PAUSE
            return False
        except LeaseLost:
            self._keeper.lose()
            return False
        for event in self._carrier.done(load):
            self._on_event(event)
        return not load.empty

    def _look(self) -> None:
        """Note whether the trainer has written anything, also while nothing can be carried."""
        if time.monotonic() - self._counted_kills >= 1.0:
            self._counted_kills = time.monotonic()
            self._kills.append(oom_kills())
        size = self._events_file.stat().st_size if self._events_file.exists() else 0
        if size != self._size:
            self._size = size
            self._last_sign = time.monotonic()

    def _police(self) -> None:
        now = time.monotonic()
        if self._keeper.lost.is_set():
            self._process.kill()
            return
        if self.verdict is None and not self._keeper.stopping:
            self.verdict = self._overdue(now)
        if self.verdict is None and not self._keeper.stopping:
            return
        if self._kill_at is None:
            self._process.terminate()
            self._kill_at = now + self._settings.grace
        elif now > self._kill_at:
            self.verdict = self.verdict or self._unheard()
            self._process.kill()

    def _unheard(self) -> Ending:
        message = f"the trainer did not stop within {self._settings.grace:g} s and was killed"
        return Ending("interrupted", FailureReason.INTERRUPTED, message)

    def _overdue(self, now: float) -> Ending | None:
        ran, silent = now - self._process.started, now - self._last_sign
        if self.time_left is not None and ran > self.time_left:
            message = "the job ran for as long as compute.max_runtime allows"
            return Ending("failed", FailureReason.TIME_LIMIT, message)
        if self._size == 0:
            self._not_begun(ran)
            if ran > self._settings.start_timeout:
                message = f"no event within {self._settings.start_timeout:g} s of the start"
                return Ending("failed", FailureReason.START_TIMEOUT, message)
        elif silent > self._settings.stall_timeout:
            message = f"no event for {self._settings.stall_timeout:g} s"
            return Ending("failed", FailureReason.STALLED, message)
        return None

    def _not_begun(self, ran: float) -> None:
        if self._process.how == "warm" and ran > FIRST_SIGN:
            _log.warning("the forked trainer does nothing: it is killed and started cold")
            self._process.kill()
            raise NoSignOfLife


def work_folder(home: Path, attempt_id: str) -> Path:
    """Where an attempt lives on its host."""
    return home / "attempts" / attempt_id
