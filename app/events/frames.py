"""Frames of server-sent events: one line of JSON each, an id only on what is stored."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from app.events.cursor import Position

END = b"\n\n"  # of a frame; JSON has no line breaks
RETRY = b"retry: 2000\n\n"
HEARTBEAT_COMMENT = b": heartbeat\n\n"
HEARTBEAT_EVENT = b'data: {"type":"heartbeat"}\n\n'


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, encoded once for all who get it; `position` is None for what is not stored."""

    position: Position | None
    type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames that are pushed together: `data` is all of them as one, `at` when (loop time).

    `first` and `last` are the positions of those that are stored; None without any.
    """

    frames: Sequence[Frame]
    data: bytes
    first: Position | None
    last: Position | None
    at: float


def batch(frames: Sequence[Frame], at: float) -> Batch:
    """Return the frames with what is the same for everybody who gets them."""
    stored = [frame.position for frame in frames if frame.position is not None]
    first, last = (stored[0], stored[-1]) if stored else (None, None)
    return Batch(frames, b"".join([frame.data for frame in frames]), first, last, at)


@dataclass(frozen=True, slots=True)
class End:
    """A job's stream is over."""

    status: str
    last_seq: int


class Form(Enum):
    """How many events become one text: as frames, or as the items of a JSON array."""

    FRAMES = "frames"
    ITEMS = "items"

    def join(self, events: Iterable[tuple[str, str]]) -> str:
        """Return the text of (id, JSON) pairs."""
        if self is Form.FRAMES:
            return "".join(f"id: {name}\ndata: {event}\n\n" for name, event in events)
        return ",".join(event for _, event in events)


def beginning(name: str) -> bytes:
    """Return the first frame of a stream whose start only the service knows: with its id.

    By the standard a client that connects again sends it, also when it has seen no event yet.
    """
    return RETRY.removesuffix(b"\n") + f"id: {name}\n\n".encode()


def event_frame(position: Position, kind: str, name: str, event: str) -> Frame:
    """Return the frame of a stored event from its id and its JSON."""
    return Frame(position, kind, f"id: {name}\ndata: {event}\n\n".encode())


def progress_frame(job_id: str, progress: str) -> Frame:
    """Return the frame of a job's newest progress, which is JSON already."""
    data = f'data: {{"job_id":"{job_id}","type":"progress","data":{progress}}}\n\n'
    return Frame(None, "progress", data.encode())


def end_frame(end: End) -> bytes:
    """Return the last frame of a job's stream."""
    return _control(type="end", status=end.status, last_seq=end.last_seq)


def resync_frame(after: str) -> bytes:
    """Return the frame that says that the stream goes on after this id, read from what is stored.

    What came before it and was not sent is to be read elsewhere: from this id, or per job.
    """
    return _control(type="resync", after=int(after) if after.isdigit() else after)


def _control(**fields: str | int) -> bytes:
    return f"data: {json.dumps(fields, separators=(',', ':'))}\n\n".encode()
