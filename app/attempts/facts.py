"""The one door for a run's facts: RunEvents in, JobEvents and the job's newest state out."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from app.attempts.store import Held, LeaseLost, hold
from app.db import touch
from app.events.store import append_events
from app.jobs.lifecycle import Change, Status, transition
from trainer_core.events import RunEvent

Facts = list[dict[str, Any]]
_PLAIN = frozenset({"log", "metrics", "warning"})


class EventGap(Exception):
    """Events arrived that do not follow the last accepted one: the carrier lost some."""


_ADVANCE = text(
    """
    UPDATE attempts SET last_n = :last_n, carried_offset = :offset, event_at = now(),
        started_at = coalesce(started_at, now()),
        last_step = greatest(last_step, CAST(:last_step AS int)),
        resumed_step = coalesce(CAST(:resumed_step AS int), resumed_step)
    WHERE id = :attempt_id
    """
)
_NEWEST = text(
    """
    UPDATE jobs SET phase = :phase, updated_at = now(),
        progress = CASE WHEN CAST(:progress AS jsonb) IS NULL THEN progress
            ELSE coalesce(progress, '{}') || CAST(:progress AS jsonb) END,
        latest_metrics = CASE WHEN CAST(:metrics AS jsonb) IS NULL THEN latest_metrics
            ELSE coalesce(latest_metrics, '{}') || CAST(:metrics AS jsonb) END
    WHERE id = :job_id
    """
)


def ingest(
    session: Session,
    attempt_id: str,
    token: str,
    events: Sequence[RunEvent],
    carried_offset: int,
) -> int:
    """Accept the events that are new; returns how many. Replays are free.

    `carried_offset` is the position in `events.jsonl` behind the last event. Raises LeaseLost, and
    EventGap when the first new event does not follow the last accepted one.
    """
    held = hold(session, attempt_id, token)
    new = [event for event in events if event.n > held.last_n]
    if not new:
        return 0
    for number, event in enumerate(new, held.last_n + 1):
        if event.n != number:
            raise EventGap(f"{attempt_id}: event {number} is missing, {event.n} came")
    facts, phase = _derive(session, held, new)
    append_events(session, held.job_id, facts, attempt_id)
    _keep_newest(session, held, new, phase)
    steps = [e.data["step"] for e in new if e.type == "metrics" and "step" in e.data]
    values = {
        "attempt_id": attempt_id,
        "last_n": new[-1].n,
        "offset": carried_offset,
        "last_step": max(steps, default=None),
        "resumed_step": next((e.data["step"] for e in new if e.type == "resumed"), None),
    }
    session.execute(_ADVANCE, values)
    return len(new)


def _derive(session: Session, held: Held, events: Sequence[RunEvent]) -> tuple[Facts, str | None]:
    """Turn RunEvents into the job's events, in order; a run's first event makes the job run."""
    status, phase = held.status, held.phase
    facts: Facts = []
    if status == Status.PROVISIONING:
        first = events[0]
        phase = first.data["phase"] if first.type == "phase" else "loading"
        transition(session, held.job_id, Status.RUNNING, Change(phase=phase))
        status = Status.RUNNING
    for event in events:
        if event.type == "phase" and event.data["phase"] != phase:
            phase = event.data["phase"]
            facts.append(_fact(event, "status", {"status": status, "phase": phase}))
        elif event.type in _PLAIN:
            facts.append(_fact(event, event.type, event.data))
        elif event.type == "resumed":
            facts.append(_fact(event, "attempt", _recovered(session, held, event.data["step"])))
    return facts, phase


def _fact(event: RunEvent, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "data": data, "n": event.n, "time": event.time.isoformat()}


_REACHED = text("SELECT max(last_step) FROM attempts WHERE job_id = :job_id AND number < :number")


def _recovered(session: Session, held: Held, step: int) -> dict[str, Any]:
    values = {"job_id": held.job_id, "number": held.number}
    reached = session.execute(_REACHED, values).scalar()
    lost = max(0, (reached or 0) - step)
    return {"event": "recovered", "number": held.number, "step": step, "steps_lost": lost}


def _keep_newest(
    session: Session, held: Held, events: Sequence[RunEvent], phase: str | None
) -> None:
    progress = [e.data for e in events if e.type == "progress"]
    metrics: dict[str, Any] = {}
    for event in events:
        if event.type == "metrics":
            metrics |= event.data
    values = {
        "job_id": held.job_id,
        "phase": phase,
        "progress": json.dumps(progress[-1]) if progress else None,
        "metrics": json.dumps(metrics) if metrics else None,
    }
    session.execute(_NEWEST, values)
    touch(session, held.job_id)


_LOGGED = text("UPDATE attempts SET log_offset = :offset WHERE id = :attempt_id")


def append_log(
    session: Session, attempt_id: str, token: str, lines: Sequence[str], log_offset: int
) -> int:
    """Keep lines of the trainer's output up to byte `log_offset`; returns how many were new.

    A batch that ends at or before the offset already kept is a replay. Raises LeaseLost.
    """
    held = hold(session, attempt_id, token)
    if log_offset <= held.log_offset:
        return 0
    facts = [
        {"type": "log", "data": {"level": "info", "source": "output", "message": line}}
        for line in lines
    ]
    append_events(session, held.job_id, facts, attempt_id)
    session.execute(_LOGGED, {"attempt_id": attempt_id, "offset": log_offset})
    return len(facts)


_TELEMETRY = text(
    """
    WITH sampled AS (
        UPDATE attempts SET telemetry = :telemetry
        WHERE id = :attempt_id AND lease_token = :token AND finished_at IS NULL
        RETURNING job_id
    )
    UPDATE jobs SET progress = coalesce(progress, '{}') || :used
    FROM sampled WHERE jobs.id = sampled.job_id RETURNING jobs.id
    """
).bindparams(bindparam("telemetry", type_=JSONB), bindparam("used", type_=JSONB))
_HANDLE = text(
    "UPDATE attempts SET handle = :handle"
    " WHERE id = :attempt_id AND lease_token = :token AND finished_at IS NULL RETURNING id"
).bindparams(bindparam("handle", type_=JSONB))


def record_telemetry(
    session: Session, attempt_id: str, token: str, telemetry: dict[str, Any]
) -> None:
    """Keep the newest sample of what the attempt uses; raises LeaseLost.

    Plain numbers are also shown in the job's progress.
    """
    held = hold(session, attempt_id, token)
    used = {name: value for name, value in telemetry.items() if isinstance(value, int | float)}
    values = {"attempt_id": attempt_id, "token": token, "telemetry": telemetry, "used": used}
    session.execute(_TELEMETRY, values)
    touch(session, held.job_id)


def record_handle(session: Session, attempt_id: str, token: str, handle: dict[str, Any]) -> None:
    """Keep what the target calls the trainer; raises LeaseLost."""
    values = {"attempt_id": attempt_id, "token": token, "handle": handle}
    if session.execute(_HANDLE, values).first() is None:
        raise LeaseLost(attempt_id)


def warn(session: Session, attempt_id: str, token: str, code: str, message: str) -> None:
    """Tell the job's owner something that the trainer cannot know; raises LeaseLost."""
    held = hold(session, attempt_id, token)
    fact = {"type": "warning", "data": {"code": code, "message": message}}
    append_events(session, held.job_id, [fact], attempt_id)
