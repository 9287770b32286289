"""Answers of the event routes, and the parameters that they share."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

EventType = Literal[
    "status", "metrics", "log", "progress", "checkpoint", "artifact", "warning", "attempt", "hub"
]
EVENT_TYPES = EventType.__args__  # type: ignore[attr-defined]


class JobEventQuery(BaseModel):
    """Which events of a job."""

    after: str | None = Field(
        None,
        max_length=200,
        description="`seq` after which to begin; 0 or nothing: the start.",
        examples=["0"],
    )
    types: str | None = Field(
        None,
        max_length=200,
        description=f"Only these, with commas between: {', '.join(EVENT_TYPES)}.",
        examples=["status,metrics"],
    )
    limit: int = Field(200, ge=1, le=1000, description="Events of a page; a stream has no limit.")
    heartbeat: Literal["comment", "event"] = Field(
        "comment",
        description='What breaks a silence: a comment, or `{"type":"heartbeat"}`.',
    )
    ticket: str | None = Field(
        None,
        max_length=200,
        description="Instead of a key: a ticket of `POST /stream-tickets`, good for one stream.",
    )


class EventQuery(JobEventQuery):
    """Which events of all jobs."""

    after: str | None = Field(
        None,
        max_length=200,
        description="Id of an event of this stream; 0: from the start. Without it a page begins "
        "at the start, and a stream with what happens next.",
        examples=["0"],
    )


class StreamHeaders(BaseModel):
    """Headers that decide between page and stream."""

    last_event_id: str | None = Field(
        None,
        max_length=200,
        description="Resume after this event; browsers send it by themselves. Wins over `after`.",
    )
    accept: str = Field(
        "application/json",
        description="`text/event-stream` opens a stream, anything else gets a page.",
    )

    @property
    def wants_stream(self) -> bool:
        """Whether the client asked for server-sent events."""
        return "text/event-stream" in self.accept.lower()


class Event(BaseModel):
    """A fact of a job."""

    seq: int = Field(
        description="Counts from 1 within the job, without gaps. Only where the service was "
        "restored from a back-up it leaps ahead once, so that no number is given out twice.",
        examples=[412],
    )
    job_id: str
    time: datetime
    type: EventType
    data: dict[str, Any] = Field(
        description="What happened. `metrics` that come faster than about 200 a second are joined: "
        "the newest values stand here, and `points` lists every point with its step and time.",
        examples=[{"step": 40, "loss": 1.284}],
    )


class JobEventPage(BaseModel):
    """A page of a job's events."""

    data: list[Event]
    next_after: int = Field(description="Pass as `after` for what follows.", examples=[412])
    has_more: bool


class EventPage(BaseModel):
    """A page of the events of all jobs."""

    data: list[Event]
    next_after: str = Field(description="Opaque; pass as `after` for what follows.")
    has_more: bool = Field(
        description="More can be read now. With `types` a page may be empty and still have more."
    )
    expired: bool = Field(
        description="Events of jobs that ended long ago, and that would follow `after`, are not "
        "here any more: read them from each job's own events."
    )


_FRAME = (
    "retry: 2000\n\nid: 412\n"
    'data: {"seq":412,"job_id":"job_01J…","time":"2026-11-30T10:00:00.123456Z","type":"metrics",'
    '"data":{"step":40,"loss":1.284}}\n\n'
)
STREAM_CONTENT: dict[str, Any] = {
    "text/event-stream": {"schema": {"type": "string"}, "example": _FRAME}
}
