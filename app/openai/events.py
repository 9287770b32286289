"""A job's events, newest first, in OpenAI's words."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, NamedTuple

from app.db import transaction
from app.events.archive import ArchivedEvent, get_archive
from app.events.ranges import Range, ranges_of
from app.openai import finding, ids, store
from app.openai.metrics import renamed
from app.openai.request import EventQuery
from app.openai.schemas import FineTuningEvent, FineTuningEventPage, ends, seconds

_TYPES = ("status", "metrics", "checkpoint", "warning", "attempt")
_END = 2**62
Data = dict[str, Any]
Level = Literal["info", "warn", "error"]


class _Found(NamedTuple):
    seq: int
    time: datetime
    type: str
    data: Data


def page_of(project_id: str, given: str, query: EventQuery) -> FineTuningEventPage:
    """Return the events before `after`; raises NotFound, InvalidPayload, and
    Unavailable without the archive."""
    before, job_id, found, ranges = _kept(project_id, given, query)
    missing = query.limit + 1 - len(found)
    if missing > 0 and ranges:
        found += _archived(ranges, before, missing)
    data = [_event(job_id, each) for each in found[: query.limit]]
    return FineTuningEventPage(data=data, has_more=len(found) > query.limit, **ends(data))


def _kept(
    project_id: str, given: str, query: EventQuery
) -> tuple[int, str, list[_Found], list[Range]]:
    """Where the page begins, the job's id, its events in Postgres, and the ranges of the archive
    at the same moment."""
    with transaction() as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        job = finding.find(session, project_id, given)
        before = _END if query.after is None else ids.seq_after(query.after, job.id)
        rows = store.events_before(session, job.id, _TYPES, before, query.limit + 1)
        ranges = ranges_of(session, job.id) if job.archived_seq else []
    return before, job.id, [_Found(row.seq, row.time, row.type, row.data) for row in rows], ranges


def _archived(ranges: list[Range], before: int, limit: int) -> list[_Found]:
    """The newest events before `before`; ranges further back than they reach are not read."""
    found: list[ArchivedEvent] = []
    for each in reversed(ranges):
        if each.first_seq < before and len(found) < limit:
            events = get_archive().events([each], 0, _TYPES)
            found += reversed([event for event in events if event.seq < before])
    return [_of_archive(event) for event in found[:limit]]


def _of_archive(event: ArchivedEvent) -> _Found:
    told = json.loads(event.json)
    return _Found(event.seq, datetime.fromisoformat(told["time"]), event.type, told["data"])


def _event(job_id: str, found: _Found) -> FineTuningEvent:
    measured = found.type == "metrics"
    data = renamed(found.data) if measured else found.data
    return FineTuningEvent(
        id=ids.ftevent_id(job_id, found.seq),
        created_at=seconds(found.time),
        level=_level(found),
        type="metrics" if measured else "message",
        message=_MESSAGES[found.type](data),
        data=data,
    )


def _level(found: _Found) -> Level:
    if found.type == "warning":
        return "warn"
    return "error" if found.data.get("status") == "failed" else "info"


_STATES = {
    "queued": "The job waits for a machine",
    "provisioning": "A machine was found",
    "running": "The fine-tuning job is running",
    "finalizing": "The fine-tuned model is being stored",
    "paused": "The job is paused",
    "succeeded": "The job has successfully completed",
    "failed": "The job has failed",
    "cancelled": "The job was cancelled",
}


def _of_status(data: Data) -> str:
    if data.get("cancel_requested"):
        return "The job is to be cancelled"
    if "pause_requested" in data:
        return "The job is to be paused" if data["pause_requested"] else "The job is to go on"
    if data.get("phase") == "preparing":
        return "Validating files"
    state = _STATES.get(data["status"], str(data["status"]))
    if data.get("message"):
        return f"{state}: {data['message']}"
    return f"{state}: {data['phase']}" if data.get("phase") else state


_SHOWN = {"train_loss": "training loss", "valid_loss": "validation loss"}


def _of_metrics(data: Data) -> str:
    told = [f"{text}={data[name]:.4g}" for name, text in _SHOWN.items() if name in data]
    return f"Step {data.get('step', '?')}: {', '.join(told) or 'metrics'}"


def _of_attempt(data: Data) -> str:
    told = f"Attempt {data.get('number', '?')}: {data.get('event', 'changed')}"
    return f"{told}: {data['message']}" if data.get("message") else told


_MESSAGES: dict[str, Callable[[Data], str]] = {
    "status": _of_status,
    "metrics": _of_metrics,
    "checkpoint": lambda data: f"Checkpoint created at step {data.get('step', '?')}",
    "warning": lambda data: str(data.get("message", "")),
    "attempt": _of_attempt,
}
