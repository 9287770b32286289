"""The one door for a run's facts: RunEvents in, JobEvents and the job's newest state out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from app.attempts.coalesce import coalesce
from app.attempts.quota import admit
from app.attempts.store import Held, LeaseLost, hold
from app.db import touch
from app.events.store import append_events
from app.jobs.lifecycle import Change, Status, transition
from app.settings import get_settings
from trainer_core.events import RunEvent

Facts = list[dict[str, Any]]
_PLAIN = frozenset({"log", "metrics", "warning"})


class EventGap(Exception):
    """Events arrived that do not follow the last accepted one: the carrier lost some."""


# One statement for a batch. The job's row is locked, and duplicates were left out under that lock,
# so numbers have no gaps; a rolled back transaction gives its numbers back.
_WRITE = text(
    """
    WITH job AS (
        UPDATE jobs SET last_seq = last_seq + :count, phase = :phase, updated_at = now(),
            log_lines = :log_lines, log_bytes = :log_bytes,
            progress = CASE WHEN CAST(:progress AS jsonb) IS NULL THEN progress
                ELSE coalesce(progress, '{}') || CAST(:progress AS jsonb) END,
            latest_metrics = CASE WHEN CAST(:metrics AS jsonb) IS NULL THEN latest_metrics
                ELSE coalesce(latest_metrics, '{}') || CAST(:metrics AS jsonb) END
        WHERE id = :job_id RETURNING project_id, last_seq - :count AS base
    ), attempt AS (
        UPDATE attempts SET last_n = :last_n, event_at = now(),
            started_at = coalesce(started_at, now()),
            last_step = greatest(last_step, CAST(:last_step AS int)),
            resumed_step = coalesce(CAST(:resumed_step AS int), resumed_step)
        WHERE id = :attempt_id
    )
    INSERT INTO job_events (job_id, seq, project_id, time, attempt_id, n, type, data)
    SELECT :job_id, job.base + e.ordinality, job.project_id, coalesce(e.time, now()), :attempt_id,
        e.n, e.type, e.data
    FROM job, ROWS FROM (
        json_to_recordset(CAST(:facts AS json))
            AS (n bigint, time timestamptz, type text, data jsonb)
    ) WITH ORDINALITY AS e
    """
)


def ingest(session: Session, attempt_id: str, token: str, events: Sequence[RunEvent]) -> int:
    """Accept the events that are new; returns how many. Replays are free.

    Raises LeaseLost, and EventGap when the first new event does not follow the last accepted one.
    """
    held = hold(session, attempt_id, token)
    new = [event for event in events if event.n > held.last_n]
    if not new:
        return 0
    for number, event in enumerate(new, held.last_n + 1):
        if event.n != number:
            raise EventGap(f"{attempt_id}: event {number} is missing, {event.n} came")
    facts, phase = _derive(session, held, new)
    admitted = admit(get_settings(), held, coalesce(facts))
    steps = [e.data["step"] for e in new if e.type == "metrics" and "step" in e.data]
    values = {
        "job_id": held.job_id,
        "attempt_id": attempt_id,
        "count": len(admitted.facts),
        "facts": to_json(admitted.facts).decode(),
        "phase": phase,
        "log_lines": admitted.lines,
        "log_bytes": admitted.size,
        **_newest(new),
        "last_n": new[-1].n,
        "last_step": max(steps, default=None),
        "resumed_step": next((e.data["step"] for e in new if e.type == "resumed"), None),
    }
    session.execute(_WRITE, values)
    touch(session, held.job_id)
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
    return {"type": kind, "data": data, "n": event.n, "time": event.time}


_REACHED = text("SELECT max(last_step) FROM attempts WHERE job_id = :job_id AND number < :number")


def _recovered(session: Session, held: Held, step: int) -> dict[str, Any]:
    values = {"job_id": held.job_id, "number": held.number}
    reached = session.execute(_REACHED, values).scalar()
    lost = max(0, (reached or 0) - step)
    return {"event": "recovered", "number": held.number, "step": step, "steps_lost": lost}


def _newest(events: Sequence[RunEvent]) -> dict[str, str | None]:
    """Return the newest progress and metrics as JSON."""
    progress = [e.data for e in events if e.type == "progress"]
    metrics: dict[str, Any] = {}
    for event in events:
        if event.type == "metrics":
            metrics |= event.data
    return {
        "progress": json.dumps(progress[-1]) if progress else None,
        "metrics": json.dumps(metrics) if metrics else None,
    }


@dataclass(frozen=True)
class Logged:
    """How many lines were stored, and whether the job's quota takes no more."""

    stored: int
    full: bool


_LOGGED = text("UPDATE attempts SET log_offset = :offset WHERE id = :attempt_id")
_COUNTED = text("UPDATE jobs SET log_lines = :lines, log_bytes = :size WHERE id = :job_id")


def append_log(
    session: Session,
    attempt_id: str,
    token: str,
    lines: Sequence[str],
    log_offset: int,
    *,
    last: bool = False,
) -> Logged:
    """Keep lines of the trainer's output up to byte `log_offset`; `last`: no more will come.

    A batch that ends at or before the offset already kept is a replay. What is beyond the job's
    quota is left out. Raises LeaseLost.
    """
    held = hold(session, attempt_id, token)
    if log_offset <= held.log_offset:
        return Logged(0, full=False)
    facts = [
        {"type": "log", "data": {"level": "info", "source": "output", "message": line}}
        for line in lines
    ]
    admitted = admit(get_settings(), held, facts, last=last)
    append_events(session, held.job_id, admitted.facts, attempt_id)
    counted = {"job_id": held.job_id, "lines": admitted.lines, "size": admitted.size}
    session.execute(_COUNTED, counted)
    # What was left out may come again, as the last lines.
    offset = log_offset - (1 if admitted.left_out and not last else 0)
    session.execute(_LOGGED, {"attempt_id": attempt_id, "offset": offset})
    return Logged(len(facts) - admitted.left_out, admitted.full)


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
