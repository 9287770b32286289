"""Reading server-sent events in tests, and writing the events that they show."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from sqlalchemy.orm import Session

from app.events.store import append_events
from app.ids import new_id
from app.jobs.lifecycle import Change, FailureReason, Status, transition
from app.models import Job
from tests.app.server import Api

SSE = {"Accept": "text/event-stream"}


@dataclass
class Frame:
    """One frame as it came over the wire."""

    id: str | None = None
    data: dict[str, Any] | None = None
    comments: list[str] = field(default_factory=list)
    retry: str | None = None

    @property
    def type(self) -> str | None:
        return self.data["type"] if self.data else None


def parse(block: str) -> Frame:
    frame = Frame()
    for line in block.split("\n"):
        name, _, value = line.partition(": ")
        if name == "":
            frame.comments.append(value)
        elif name == "id":
            frame.id = value
        elif name == "retry":
            frame.retry = value
        elif name == "data":
            assert frame.data is None, "one line of JSON"
            frame.data = json.loads(value)
        else:
            raise AssertionError(f"unexpected line {line!r}")
    return frame


def frames_of(chunks: Iterator[str]) -> Iterator[Frame]:
    rest = ""
    for chunk in chunks:
        *blocks, rest = (rest + chunk).split("\n\n")
        yield from (parse(block) for block in blocks)


@contextlib.contextmanager
def stream(
    client: httpx.Client, path: str, last_event_id: str | None = None, **query: str
) -> Iterator[Iterator[Frame]]:
    """Open a stream and yield its frames as they come."""
    headers = {**SSE, **({"Last-Event-ID": last_event_id} if last_event_id else {})}
    with client.stream("GET", path, params=query, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        assert "no-store" in answer.headers["cache-control"]
        assert "content-encoding" not in answer.headers
        yield frames_of(answer.iter_text())


def read_to_end(client: httpx.Client, path: str, **more: Any) -> list[Frame]:
    """Read a stream of a finished job to its end."""
    with stream(client, path, **more) as frames:
        return list(frames)


def new_job(api: Api, project: str = "prj_default") -> str:
    """Put a queued job without events into the database."""
    job_id = new_id("job")
    spec = {"task": {"type": "sft"}, "model": {"name_or_path": "m"}, "data": {"train": []}}
    with Session(api.engine) as session, session.begin():
        session.add(
            Job(
                id=job_id,
                project_id=project,
                name="streamed",
                task_type="sft",
                backend="hf",
                target="local",
                spec=spec,
                resolved=spec,
                max_attempts=1,
            )
        )
    return job_id


def append(api: Api, job_id: str, events: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Append events (type, data) in one transaction; readers are nudged after it."""
    with Session(api.engine) as session, session.begin():
        append_events(session, job_id, [{"type": kind, "data": data} for kind, data in events])


def log(*numbers: int) -> list[tuple[str, dict[str, Any]]]:
    """Return numbered log events."""
    return [("log", {"level": "info", "message": f"line {number}"}) for number in numbers]


def fail(api: Api, job_id: str) -> None:
    """End the job."""
    with Session(api.engine) as session, session.begin():
        change = Change(reason=FailureReason.INTERNAL, message="over")
        assert transition(session, job_id, Status.FAILED, change)


def seqs(frames: Sequence[Frame]) -> list[int]:
    """Return the seq of every stored event, checked against its id."""
    stored = [frame for frame in frames if frame.id is not None]
    assert all(frame.data and str(frame.data["seq"]) == frame.id for frame in stored)
    return [frame.data["seq"] for frame in stored if frame.data]


def metric(api: Api, name: str) -> float:
    """Return a number of the API's own metrics that has no labels."""
    lines = api.client.get("/metrics").text.splitlines()
    [value] = [line.split()[1] for line in lines if line.split(" ")[0] == name]
    return float(value)
