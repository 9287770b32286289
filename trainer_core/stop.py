"""SIGTERM and SIGINT: stop soon and whole; the second signal ends the process at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from trainer_core.errors import Interrupted

KILLED = 143
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Turns the first signal into `Interrupted`, raised at once or, inside `held()`, later.

    Used as a context manager around a run; restores the previous handlers at its end. In another
    thread than the main one there are no signals to receive, and only `requested` is of use.
    """

    def __init__(self) -> None:
        self.requested = False
        self._held = 0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._receive) for s in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a signal only set `requested`, so that what runs inside is not torn apart."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def check(self) -> None:
        """Raise Interrupted if a signal came: libraries may have swallowed the first one."""
        if self.requested:
            raise Interrupted("stopped by a signal")

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - handler
        if self.requested:
            os._exit(KILLED)
        self.requested = True
        if not self._held:
            raise Interrupted("stopped by a signal")
