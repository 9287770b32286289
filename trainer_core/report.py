"""The run's voice: emits RunEvents so that no signal tears one apart, and throttles progress."""

import time
from collections.abc import Callable
from typing import Any

from trainer_core.events import EventType, EventWriter, RunEvent
from trainer_core.stop import StopSignal

PROGRESS_SECONDS = 1.0


class Reporter:
    """Emits events to `events.jsonl`, and shows each to a listener (a terminal)."""

    def __init__(
        self,
        writer: EventWriter,
        stop: StopSignal,
        listener: Callable[[RunEvent], None] | None = None,
    ) -> None:
        self._writer = writer
        self._stop = stop
        self._listener = listener
        self._phase: str | None = None
        self._next_progress = 0.0

    def emit(self, kind: EventType, /, **data: Any) -> None:
        """Write one event, whole and fsynced."""
        with self._stop.held():
            event = self._writer.emit(kind, **data)
            if self._listener is not None:
                self._listener(event)

    def phase(self, phase: str) -> None:
        """Say that a phase begins; raises Interrupted where a signal was swallowed before."""
        self._stop.check()
        self.phase_unless_stopped(phase)
        self._stop.check()

    def phase_unless_stopped(self, phase: str) -> None:
        """Say that a phase begins, but not while the run is being stopped."""
        if phase != self._phase and not self._stop.requested:
            self._phase = phase
            self.emit("phase", phase=phase)

    def warn(self, code: str, message: str) -> None:
        """Tell the job's owner something that does not stop the run."""
        self.emit("warning", code=code, message=message)

    def log(self, message: str, level: str = "info") -> None:
        """One line for people."""
        self.emit("log", level=level, message=message)

    def progress_is_due(self) -> bool:
        """True about once a second; asking moves the clock."""
        now = time.monotonic()
        if now < self._next_progress:
            return False
        self._next_progress = now + PROGRESS_SECONDS
        return True


class Mute(Reporter):
    """The voice of a rank that is not rank 0: says nothing."""

    def __init__(self, stop: StopSignal) -> None:
        self._stop = stop
        self._phase: str | None = None
        self._next_progress = 0.0

    def emit(self, kind: EventType, /, **data: Any) -> None:
        """Nothing."""
