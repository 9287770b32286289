"""Carries a trainer's facts up: events from `events.jsonl`, lines from `output.log`."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from app.attempts import service
from app.attempts.quota import LAST_LINES
from trainer_core.events import RunEvent, read_events
from worker.redact import Redactor

BATCH = 500
LONGEST_TEXT = 8_192
LINES_PER_SECOND = 100
LINE_BURST = 1_000
LONGEST_LINE = 4_096
_LOG_EVERY = 0.5


class BrokenEvents(Exception):
    """The trainer wrote something that is not an event."""


@dataclass
class EventTail:
    """Reads events as they are written, without secrets and without oversized texts."""

    path: Path
    redactor: Redactor
    offset: int = 0

    def read(self) -> list[tuple[RunEvent, int]]:
        """Return at most `BATCH` new events, each with its end; raises BrokenEvents."""
        if not self.path.exists() or self.path.stat().st_size <= self.offset:
            return []
        batch = []
        try:
            for event, end in read_events(self.path, self.offset):
                batch.append((self._safe(event), end))
                if len(batch) == BATCH:
                    break
        except (ValidationError, json.JSONDecodeError) as error:
            if not batch:
                raise BrokenEvents(f"event at byte {self.offset} cannot be read") from error
        return batch

    def _safe(self, event: RunEvent) -> RunEvent:
        return event.model_copy(update={"data": _shorten(self.redactor.data(event.data))})


def _shorten(data: dict[str, Any]) -> dict[str, Any]:
    return {
        name: f"{value[:LONGEST_TEXT]} … ({len(value)} characters)"
        if isinstance(value, str) and len(value) > LONGEST_TEXT
        else value
        for name, value in data.items()
    }


def _shown(raw: bytes) -> str:
    """Return what is seen of a line: a progress bar rewrites it, only its last state counts."""
    return raw.decode(errors="replace").rstrip("\r").rpartition("\r")[2].rstrip()


@dataclass(frozen=True)
class _ReadState:
    """What reading on depends on: lines that may still be stored, as of when; the last line, which
    the next one may go on; whether there was more to read than could be read at once."""

    allowance: float
    counted: float
    before: str = ""
    behind: bool = False


class LogTail:
    """Reads whole lines as they are written, at most so many a second.

    What is too much is counted and left out, but never the last lines; the file keeps it. While
    lines cannot be stored, what they may count goes on to grow. Once the job's quota is `full`,
    only the last lines are read, when no more will come.
    """

    def __init__(self, path: Path, redactor: Redactor) -> None:
        self.offset = 0
        self.ended = False
        self.full = False
        self.stored = 0  # lines behind the offset that were still stored when it became full
        self._path = path
        self._redactor = redactor
        self._looked = 0.0
        self._state = self._next = _ReadState(float(LINE_BURST), time.monotonic())

    def read(self, *, final: bool = False) -> tuple[list[str], int]:
        """Return new lines and the offset behind them; with `final` an unfinished one too.

        Nothing is used up by it: the same lines come again until `done` is told.
        """
        self._next = self._state
        now = time.monotonic()
        if not final and (self.full or now - self._looked < _LOG_EVERY):
            return [], self.offset
        self._looked = now
        if self.full:
            return self._ending()
        data = self._bytes(self.offset)
        end = len(data) if final else self._whole(data)
        self._next = replace(self._next, behind=len(data) == LONGEST_TEXT * 32)
        lines = self._masked(data[:end].split(b"\n"))
        self.ended = final and len(data) < LONGEST_TEXT * 32
        return self._limited(lines, last=self.ended), self.offset + end

    def done(self, offset: int) -> None:
        """Move on behind the lines of the last `read`, which are stored now."""
        self.offset = offset
        self._state = self._next

    def _ending(self) -> tuple[list[str], int]:
        self.ended = True
        size = self._path.stat().st_size
        start = max(self.offset, size - LONGEST_TEXT * 32)
        raws = self._bytes(start).split(b"\n")
        if start > self.offset:
            del raws[0]  # begins in the middle, maybe of a secret
        lines = self._masked(raws)
        unstored = lines if start > self.offset else lines[self.stored :]
        return unstored[-LAST_LINES:], size

    def _bytes(self, offset: int) -> bytes:
        if not self._path.exists():
            return b""
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(LONGEST_TEXT * 32)

    def _whole(self, data: bytes) -> int:
        """Return where the whole lines end, before one that may hold half of a secret."""
        end, full = data.rfind(b"\n") + 1, len(data) == LONGEST_TEXT * 32
        if end == 0:  # nothing yet, or one endless line
            return len(data) - self._begun(data[-LONGEST_LINE:]) if full else 0
        start = data.rfind(b"\n", 0, end - 1) + 1
        held = self._begun(data[start:end]) and not (full and start == 0)
        return start if held else end

    def _begun(self, raw: bytes) -> int:
        """Return how many bytes at the end may be the beginning of a secret."""
        text = raw.decode(errors="replace").rstrip()
        count = self._redactor.begins(text)
        return len(text[len(text) - count :].encode())

    def _masked(self, raws: list[bytes]) -> list[str]:
        """Return the lines that say something, without secrets, also over the ends of lines."""
        found = [text for raw in raws if (text := _shown(raw))]
        masked = self._redactor.lines([self._state.before, *found])[1:]
        if found:
            self._next = replace(self._next, before=found[-1])
        return [t if len(t) <= LONGEST_LINE else f"{t[:LONGEST_LINE]} …" for t in masked]

    def _limited(self, lines: list[str], *, last: bool) -> list[str]:
        now = time.monotonic()
        held = self._state.allowance
        kept = held if self._state.behind else min(float(LINE_BURST), held)
        allowance = kept + (now - self._state.counted) * LINES_PER_SECOND
        allowed = int(allowance)
        left = allowance - min(allowed, len(lines))
        self._next = replace(self._next, allowance=left, counted=now)
        if len(lines) <= allowed:
            return lines
        # The end says why a run failed: it is kept whatever came before it.
        ending = lines[allowed:][-LAST_LINES:] if last else []
        left_out = len(lines) - allowed - len(ending)
        note = f"… {left_out} lines left out: more than {LINES_PER_SECOND} a second"
        return [*lines[:allowed], *([note] if left_out else []), *ending]


class Carrier:
    """Moves what is new into Postgres in one transaction per batch; knows the newest facts."""

    def __init__(self, work: Path, attempt_id: str, token: str, redactor: Redactor) -> None:
        self._attempt_id = attempt_id
        self._token = token
        self.events_file = work / "events.jsonl"
        self._events = EventTail(self.events_file, redactor)
        self._log = LogTail(work / "output.log", redactor)
        self.result: dict[str, Any] | None = None
        self.checkpoints: list[dict[str, Any]] = []
        self.artifacts: list[dict[str, Any]] = []
        self.metrics: dict[str, Any] = {}

    def carry(self, session: Session, *, final: bool = False) -> "Load":
        """Write one batch; call `done` on what it returns after the commit.

        Raises LeaseLost, EventGap and BrokenEvents.
        """
        batch = self._events.read()
        lines, log_offset = self._log.read(final=final)
        events = [event for event, _ in batch]
        if batch:
            service.ingest(session, self._attempt_id, self._token, events)
        offset = batch[-1][1] if batch else self._events.offset
        load = Load(events, offset, len(lines), log_offset)
        if lines:
            held = (session, self._attempt_id, self._token)
            logged = service.append_log(*held, lines, log_offset, last=self._log.ended)
            load = replace(load, log=logged)
        return load

    def done(self, load: "Load") -> Iterator[RunEvent]:
        """Move on behind a committed batch, and yield its events."""
        self._events.offset = load.event_offset
        if load.log is not None and load.log.full and not self._log.ended:
            self._log.full, self._log.stored = True, load.log.stored
        else:
            self._log.done(load.log_offset)
        for event in load.events:
            self._remember(event)
            yield event

    def _remember(self, event: RunEvent) -> None:
        match event.type:
            case "result":
                self.result = event.data
            case "checkpoint":
                self.checkpoints.append(event.data)
            case "artifact":
                self.artifacts.append(event.data)
            case "metrics":
                self.metrics |= event.data


@dataclass(frozen=True)
class Load:
    """One batch on its way."""

    events: Sequence[RunEvent]
    event_offset: int
    lines: int
    log_offset: int
    log: service.Logged | None = None

    @property
    def empty(self) -> bool:
        """Whether there was nothing new."""
        return not self.events and not self.lines
