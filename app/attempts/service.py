"""One try of a job: reserved, claimed, renewed, ended and released."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from app.attempts.commits import (
    Publication,
    StoredCheckpoint,
    StoredFile,
    commit_checkpoint,
    commit_model,
    finalize,
    newest_checkpoints,
)
from app.attempts.facts import (
    EventGap,
    append_log,
    ingest,
    record_handle,
    record_telemetry,
    warn,
)
from app.attempts.store import LEASE_EXPIRED, Held, LeaseLost, hold, lease_seconds, lock, wake
from app.events.store import append_events
from app.ids import new_id
from app.jobs.lifecycle import RULES, Change, FailureReason, Status, transition
from app.outbox import hint, host_queue
from app.settings import get_settings

LONGEST_BACKOFF = 600.0
Outcome = Literal["failed", "interrupted", "lost"]


@dataclass(frozen=True)
class Claim:
    """What the holder of a fresh lease needs to know."""

    attempt_id: str
    job_id: str
    project_id: str
    number: int
    token: str
    devices: list[int]


@dataclass(frozen=True)
class Intent:
    """What the job's owner wants by now."""

    cancel: bool


@dataclass(frozen=True)
class Ending:
    """How an attempt ended that did not succeed."""

    outcome: Outcome
    reason: FailureReason
    message: str
    exit_code: int | None = None


_RESERVABLE = text(
    """
    SELECT project_id, target FROM jobs
    WHERE id = :job_id AND status = 'queued' AND prepared_key IS NOT NULL
        AND cancel_requested_at IS NULL AND (not_before IS NULL OR not_before <= now())
    FOR NO KEY UPDATE
    """
)
_FREE_DEVICES = text(
    """
    SELECT index FROM devices
    WHERE worker_id = :worker_id AND index IN :indexes AND attempt_id IS NULL
    FOR NO KEY UPDATE
    """
).bindparams(bindparam("indexes", expanding=True))
_INSERT = text(
    """
    INSERT INTO attempts
        (id, project_id, job_id, number, target, worker_id, devices, nonce, hinted_at)
    SELECT :id, :project_id, :job_id, 1 + coalesce(max(number), 0), :target, :worker_id, :devices,
        :nonce, now()
    FROM attempts WHERE job_id = :job_id
    RETURNING number
    """
).bindparams(bindparam("devices", type_=JSONB))
_TAKE_DEVICES = text(
    "UPDATE devices SET attempt_id = :id WHERE worker_id = :worker_id AND index IN :indexes"
).bindparams(bindparam("indexes", expanding=True))


def reserve(
    session: Session, job_id: str, worker_id: str, device_indexes: Sequence[int]
) -> str | None:
    """Give a prepared, queued job these devices and hint its host; returns the attempt's id.

    Returns None, having written nothing, when the job cannot start now or a device is taken.
    """
    indexes = list(device_indexes)
    job = session.execute(_RESERVABLE, {"job_id": job_id}).first()
    if job is None:
        return None
    where = {"worker_id": worker_id, "indexes": indexes}
    if len(session.execute(_FREE_DEVICES, where).all()) != len(set(indexes)):
        return None
    attempt_id = new_id("att")
    values = {
        "id": attempt_id,
        "project_id": job.project_id,
        "job_id": job_id,
        "target": job.target,
        "worker_id": worker_id,
        "devices": indexes,
        "nonce": secrets.token_hex(16),
    }
    number = session.execute(_INSERT, values).scalar_one()
    session.execute(_TAKE_DEVICES, {"id": attempt_id, **where})
    transition(session, job_id, Status.PROVISIONING)
    data = {"event": "provisioned", "number": number, "worker_id": worker_id, "devices": indexes}
    append_events(session, job_id, [{"type": "attempt", "data": data}], attempt_id)
    if indexes:  # without devices of a host of ours the reconciler itself carries the attempt
        hint(session, job.project_id, host_queue(worker_id), "run", attempt_id)
    return attempt_id


_CLAIM = text(
    """
    UPDATE attempts SET lease_token = :token, nonce = :nonce, claimed_at = now(),
        lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'
    WHERE id = :attempt_id AND worker_id = :worker_id AND (claimed_at IS NULL OR nonce = :nonce)
    RETURNING devices
    """
)


def claim(session: Session, attempt_id: str, worker_id: str, nonce: str) -> Claim | None:
    """Take the attempt's lease; None when it is claimed, over or another host's.

    Claiming again with the same `nonce` is silent, so an answer that was lost can be asked for.
    A cancel that came before is met here: the attempt ends without having started anything.
    """
    found = lock(session, attempt_id)
    if found is None:
        return None
    held, _ = found
    token = secrets.token_hex(16)
    values = {"attempt_id": attempt_id, "worker_id": worker_id, "nonce": nonce, "token": token}
    row = session.execute(_CLAIM, {**values, "lease": lease_seconds()}).first()
    if row is None:
        return None
    if held.cancel:
        _end(session, held, _CANCELLED)
        release(session, attempt_id)
        return None
    return Claim(attempt_id, held.job_id, held.project_id, held.number, token, list(row.devices))


_RENEW = text(
    """
    UPDATE attempts SET lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'
    FROM jobs
    WHERE attempts.id = :attempt_id AND lease_token = :token AND attempts.finished_at IS NULL
        AND jobs.id = attempts.job_id
    RETURNING jobs.cancel_requested_at IS NOT NULL AS cancel
    """
)
_INTENT = text(
    """
    SELECT jobs.cancel_requested_at IS NOT NULL AS cancel
    FROM attempts JOIN jobs ON jobs.id = attempts.job_id
    WHERE attempts.id = :attempt_id AND lease_token = :token AND attempts.finished_at IS NULL
    """
)


def renew(session: Session, attempt_id: str, token: str) -> Intent:
    """Prolong the lease and learn what is wanted; raises LeaseLost when refused.

    A lease that ran out is prolonged as long as nobody took the attempt over.
    """
    values = {"attempt_id": attempt_id, "token": token, "lease": lease_seconds()}
    row = session.execute(_RENEW, values).first()
    if row is None:
        raise LeaseLost(attempt_id)
    return Intent(cancel=row.cancel)


def intent(session: Session, attempt_id: str, token: str) -> Intent:
    """Learn what is wanted without writing; raises LeaseLost when the lease is not ours."""
    row = session.execute(_INTENT, {"attempt_id": attempt_id, "token": token}).first()
    if row is None:
        raise LeaseLost(attempt_id)
    return Intent(cancel=row.cancel)


def finish(session: Session, attempt_id: str, token: str | None, ending: Ending) -> Status:
    """End an attempt that did not succeed; returns the job's new status.

    cancelled when that was asked for; queued again when the reason is one that is retried and
    attempts are left; else failed. Raises LeaseLost when the attempt is over, or `token` is not
    its lease's (None: the caller stands above leases).
    """
    found = lock(session, attempt_id)
    if found is None or (token is not None and found[1] != token):
        raise LeaseLost(attempt_id)
    return _end(session, found[0], ending)


_CANCELLED = Ending("interrupted", FailureReason.INTERRUPTED, "cancelled")
_FINISH = text(
    """
    UPDATE attempts SET outcome = :outcome, reason = :reason, message = :message,
        exit_code = :exit_code, finished_at = now()
    WHERE id = :attempt_id
    """
)


def _end(session: Session, held: Held, ending: Ending) -> Status:
    outcome = "cancelled" if held.cancel else ending.outcome
    values = {
        "attempt_id": held.attempt_id,
        "outcome": outcome,
        "reason": None if held.cancel else ending.reason.value,
        "message": None if held.cancel else ending.message,
        "exit_code": ending.exit_code,
    }
    session.execute(_FINISH, values)
    if held.cancel:
        transition(session, held.job_id, Status.CANCELLED)
        return Status.CANCELLED
    used = session.execute(_USED, {"job_id": held.job_id}).scalar_one()
    retried = RULES[ending.reason].retried
    if retried and used < held.max_attempts:
        _requeue(session, held, ending, used)
        return Status.QUEUED
    last = f" (attempt {used} of {held.max_attempts}, the last)"
    message = ending.message + (last if retried and held.max_attempts > 1 else "")
    transition(session, held.job_id, Status.FAILED, Change(reason=ending.reason, message=message))
    return Status.FAILED


# Stopping a host for a while must not use a job up: what was interrupted after it had come further
# is not counted.
_USED = text(
    """
    SELECT count(*) FROM attempts WHERE job_id = :job_id AND finished_at IS NOT NULL
        AND NOT (outcome = 'interrupted' AND coalesce(last_step, 0) > coalesce(resumed_step, 0))
    """
)


def _requeue(session: Session, held: Held, ending: Ending, used: int) -> None:
    wait = min(get_settings().retry_base * 2 ** max(used - 1, 0), LONGEST_BACKOFF)
    data: dict[str, Any] = {
        "event": "interrupted",
        "number": held.number,
        "reason": ending.reason.value,
        "message": ending.message,
        "retry_in_seconds": wait,
    }
    append_events(session, held.job_id, [{"type": "attempt", "data": data}], held.attempt_id)
    waiting = f"another attempt after {ending.reason.value}; {used} of {held.max_attempts} used"
    change = Change(waiting_for=waiting, retry_after=wait)
    transition(session, held.job_id, Status.QUEUED, change)
    wake(session, "jobs")


_RELEASE = text(
    """
    UPDATE attempts SET released_at = now(), cleanup_error = NULL
    WHERE id = :attempt_id AND released_at IS NULL AND finished_at IS NOT NULL
    """
)


def release(session: Session, attempt_id: str, error: str | None = None) -> None:
    """Give the attempt's devices back; with `error` they stay taken, and the error is kept.

    The outcome is never touched. Releasing twice is silent, so is releasing an open attempt.
    """
    values = {"attempt_id": attempt_id, "error": error}
    if error is not None:
        session.execute(
            text("UPDATE attempts SET cleanup_error = :error WHERE id = :attempt_id"), values
        )
        return
    session.execute(_RELEASE, {"attempt_id": attempt_id})
    session.execute(
        text(
            "UPDATE devices SET attempt_id = NULL WHERE attempt_id = :attempt_id AND EXISTS"
            " (SELECT FROM attempts WHERE id = :attempt_id AND released_at IS NOT NULL)"
        ),
        {"attempt_id": attempt_id},
    )
    wake(session, "devices")


def attempts_of(session: Session, job_id: str) -> list[str]:
    """Return the ids of the job's attempts, the first one first."""
    query = text("SELECT id FROM attempts WHERE job_id = :job_id ORDER BY number")
    return list(session.execute(query, {"job_id": job_id}).scalars())


# Lost: a lease that ran out, or a host that vanished before it claimed.
_LOST = f"""
    finished_at IS NULL AND ({LEASE_EXPIRED} OR (claimed_at IS NULL AND NOT EXISTS (
        SELECT FROM workers w WHERE w.id = attempts.worker_id
            AND w.seen_at > now() - CAST(:worker_timeout AS float) * interval '1 second')))
"""
_EXPIRED = text(f"SELECT id FROM attempts WHERE {_LOST} ORDER BY id LIMIT 100")  # noqa: S608
_IS_LOST = text(f"SELECT id FROM attempts WHERE id = :attempt_id AND {_LOST}")  # noqa: S608


def _limits() -> dict[str, float]:
    settings = get_settings()
    return {"lease": settings.lease, "worker_timeout": settings.worker_timeout}


def expired(session: Session) -> list[str]:
    """Return attempts whose holder is gone by the database's clock; pass each to `expire`."""
    return list(session.execute(_EXPIRED, _limits()).scalars())


def expire(session: Session, attempt_id: str) -> Status | None:
    """End and release an attempt whose holder is gone; None when it lives after all.

    Its trainer dies with its supervisor, so the devices are free.
    """
    found = lock(session, attempt_id)
    if found is None:
        return None
    lost = session.execute(_IS_LOST, {"attempt_id": attempt_id, **_limits()}).first()
    if lost is None:
        return None
    message = "the machine or its worker stopped answering"
    status = _end(session, found[0], Ending("lost", FailureReason.MACHINE_LOST, message))
    release(session, attempt_id)
    return status


__all__ = [
    "Claim",
    "Ending",
    "EventGap",
    "Intent",
    "LeaseLost",
    "Publication",
    "StoredCheckpoint",
    "StoredFile",
    "append_log",
    "attempts_of",
    "claim",
    "commit_checkpoint",
    "commit_model",
    "expire",
    "expired",
    "finalize",
    "finish",
    "hold",
    "ingest",
    "intent",
    "newest_checkpoints",
    "record_handle",
    "record_telemetry",
    "release",
    "renew",
    "reserve",
    "warn",
]
