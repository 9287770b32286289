"""RunEvents: the facts that a run reports, numbered and fsynced before anyone relies on them."""

import json
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

EventType = Literal[
    "phase", "progress", "metrics", "log", "warning", "checkpoint", "resumed", "artifact", "result"
]
EVENT_TYPES: tuple[str, ...] = get_args(EventType)
_DECIDE_NOTHING = ("progress", "metrics")
_SYNC_SECONDS = 1.0


class RunEvent(BaseModel):
    """One fact of one attempt; `n` counts from 1 without gaps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int = Field(ge=1)
    time: datetime
    type: EventType
    data: dict[str, Any]


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop numbers that JSON cannot carry (NaN, infinities): never report NaN as something else."""
    return {k: v for k, v in values.items() if not isinstance(v, float) or math.isfinite(v)}


class EventWriter:
    """Appends RunEvents to `events.jsonl`; safe to call from several threads.

    A torn last line (a kill in the middle of a write) is cut off when the file is opened again, so
    the numbering goes on without a gap.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("ab", buffering=0)
        self._n = self._recover(path)
        self._size = path.stat().st_size
        self._next_sync = 0.0

    def _recover(self, path: Path) -> int:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            self._file.truncate(whole)
        return content.count(b"\n")

    def emit(self, kind: EventType, /, **data: Any) -> RunEvent:
        """Write one event and fsync it; returns the event.

        Metrics and progress, which nothing is decided by, wait up to a second to be synced
        together: a busy disk would hold up every step.
        """
        with self._lock:
            event = RunEvent(n=self._n + 1, time=datetime.now(UTC), type=kind, data=finite(data))
            self._write(event.model_dump_json().encode() + b"\n")
            if kind not in _DECIDE_NOTHING or time.monotonic() >= self._next_sync:
                os.fsync(self._file.fileno())
                self._next_sync = time.monotonic() + _SYNC_SECONDS
            self._n = event.n
        return event

    def _write(self, line: bytes) -> None:
        """Write a line whole or not at all: on a full disk the next one has its number."""
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file; further events raise ValueError."""
        self._file.close()


def read_events(path: Path, offset: int = 0) -> Iterator[tuple[RunEvent, int]]:
    """Yield whole events after byte `offset`, each with its end offset; stop at a torn line."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield RunEvent.model_validate(json.loads(line)), offset
