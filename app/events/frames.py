"""Frames of server-sent events: one line of JSON each, an id only on what is stored."""

import json
from dataclasses import dataclass

from app.events.cursor import Position
from app.events.source import End, StoredEvent

RETRY = b"retry: 2000\n\n"
HEARTBEAT_COMMENT = b": heartbeat\n\n"
HEARTBEAT_EVENT = b'data: {"type":"heartbeat"}\n\n'


@dataclass(frozen=True, slots=True)
class Frame:
    """One encoded frame; `position` is None for what is not stored."""

    position: Position | None
    type: str
    data: bytes


def event_frame(event: StoredEvent) -> Frame:
    """Return the frame of a stored event."""
    data = f"id: {event.id}\ndata: {event.json}\n\n".encode()
    return Frame(event.position, event.type, data)


def progress_frame(job_id: str, progress: str) -> Frame:
    """Return the frame of a job's newest progress, which is JSON already."""
    data = f'data: {{"job_id":"{job_id}","type":"progress","data":{progress}}}\n\n'
    return Frame(None, "progress", data.encode())


def end_frame(end: End) -> bytes:
    """Return the last frame of a job's stream."""
    return _control(type="end", status=end.status, last_seq=end.last_seq)


def resync_frame(after: str) -> bytes:
    """Return the frame that says that the stream goes on after this id, read from Postgres."""
    return _control(type="resync", after=int(after) if after.isdigit() else after)


def _control(**fields: str | int) -> bytes:
    return f"data: {json.dumps(fields, separators=(',', ':'))}\n\n".encode()
