"""How attempts end: by their reason, by a cancel, by losing their holder; and their clean-up."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.attempts.store import LEASE_EXPIRED, Held, LeaseLost, lock, wake
from app.events.store import append_events
from app.jobs.lifecycle import RULES, Change, FailureReason, Status, transition
from app.settings import get_settings

LONGEST_BACKOFF = 600.0
Outcome = Literal["failed", "interrupted", "lost"]


@dataclass(frozen=True)
class Ending:
    """How an attempt ended that did not succeed."""

    outcome: Outcome
    reason: FailureReason
    message: str
    exit_code: int | None = None


def finish(session: Session, attempt_id: str, token: str | None, ending: Ending) -> Status:
    """End an attempt that did not succeed; returns the job's new status.

    cancelled when that was asked for; queued again when the reason is one that is retried and
    attempts are left; else failed. Raises LeaseLost when the attempt is over, or `token` is not
    its lease's (None: the caller stands above leases).
    """
    found = lock(session, attempt_id)
    if found is None or (token is not None and found[1] != token):
        raise LeaseLost(attempt_id)
    return end_attempt(session, found[0], ending)


CANCELLED = Ending("interrupted", FailureReason.INTERRUPTED, "cancelled")
_FINISH = text(
    """
    UPDATE attempts SET outcome = :outcome, reason = :reason, message = :message,
        exit_code = :exit_code, finished_at = now()
    WHERE id = :attempt_id
    """
)


def end_attempt(session: Session, held: Held, ending: Ending) -> Status:
    """End an attempt whose rows are locked; returns the job's new status."""
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
    status = end_attempt(session, found[0], Ending("lost", FailureReason.MACHINE_LOST, message))
    release(session, attempt_id)
    return status
