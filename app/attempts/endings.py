"""How attempts end: by their reason, by a cancel, by losing their holder; and their clean-up."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from app.attempts.store import LEASE_EXPIRED, Held, LeaseLost, host_is_up, lock, wake
from app.events.store import append_events
from app.jobs.lifecycle import LEGAL, RULES, Change, FailureReason, Status, transition
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

    cancelled when that was asked for, else paused likewise; queued again when the reason is one
    that is retried and attempts are left; else failed. Raises LeaseLost when the attempt is over,
    or `token` is not its lease's (None: the caller stands above leases).
    """
    found = lock(session, attempt_id)
    if found is None or (token is not None and found[1] != token):
        raise LeaseLost(attempt_id)
    return end_attempt(session, found[0], ending)


UNBEGUN = Ending("interrupted", FailureReason.INTERRUPTED, "handed back before anything began")
PAUSED = "paused on request"
_FINISH = text(
    """
    UPDATE attempts SET outcome = :outcome, reason = :reason, message = :message,
        exit_code = :exit_code, finished_at = now()
    WHERE id = :attempt_id
    """
)


def end_attempt(session: Session, held: Held, ending: Ending) -> Status:
    """End an attempt whose rows are locked; returns the job's new status."""
    if held.cancel:
        _close(session, held, "cancelled", None, ending)
        transition(session, held.job_id, Status.CANCELLED)
        return Status.CANCELLED
    pause = held.pause and Status.PAUSED in LEGAL[Status(held.status)]
    if pause and ending.outcome == "interrupted":
        _close(session, held, "interrupted", None, replace(ending, message=PAUSED))
        return _pause(session, held, ending)
    _close(session, held, ending.outcome, ending.reason, ending)
    use = used_attempts(session, held.job_id)
    retried = RULES[ending.reason].retried
    if not retried or use.used >= held.max_attempts:
        last = f" (attempt {use.used} of {held.max_attempts}, the last)"
        message = ending.message + (last if retried and held.max_attempts > 1 else "")
        change = Change(reason=ending.reason, message=message)
        transition(session, held.job_id, Status.FAILED, change)
        return Status.FAILED
    return _pause(session, held, ending) if pause else _requeue(session, held, ending, use)


def _close(
    session: Session, held: Held, outcome: str, reason: FailureReason | None, ending: Ending
) -> None:
    values = {
        "attempt_id": held.attempt_id,
        "outcome": outcome,
        "reason": reason and reason.value,
        "message": None if outcome == "cancelled" else ending.message,
        "exit_code": ending.exit_code,
    }
    session.execute(_FINISH, values)


# Stopping a host for a while must not use a job up: an attempt that was handed back counts only
# when it reached no new step, and even then not the first `FORGIVEN` times. Each further step is
# reached once, so a job that is interrupted for ever comes to its end. A pause never counts.
FORGIVEN = 10
_USED = text(
    """
    WITH ended AS (
        SELECT outcome = 'interrupted' OR claimed_at IS NULL AS handed_back,
            outcome = 'interrupted' AND reason IS NULL AS paused,
            coalesce(last_step, 0) > greatest(coalesce(resumed_step, 0), coalesce(max(last_step)
                OVER (ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0))
                AS forward
        FROM attempts WHERE job_id = :job_id AND finished_at IS NOT NULL
    ), counted AS (
        SELECT count(*) FILTER (WHERE NOT handed_back) AS failures,
            count(*) FILTER (WHERE handed_back AND NOT paused AND NOT forward) AS idle
        FROM ended
    )
    SELECT failures + greatest(0, idle - :forgiven) AS used, failures + idle AS tries FROM counted
    """
)


def used_attempts(session: Session, job_id: str) -> Row[Any]:
    """Return `used`, which `max_attempts` limits, and `tries`, which the back-off grows with."""
    return session.execute(_USED, {"job_id": job_id, "forgiven": FORGIVEN}).one()


def _requeue(session: Session, held: Held, ending: Ending, use: Row[Any]) -> Status:
    wait = min(get_settings().retry_base * 2.0 ** max(use.tries - 1, 0), LONGEST_BACKOFF)
    data = _interrupted(held, ending.message)
    data |= {"reason": ending.reason.value, "retry_in_seconds": wait}
    append_events(session, held.job_id, [{"type": "attempt", "data": data}], held.attempt_id)
    waiting = f"another attempt after {ending.reason.value}; {use.used} of {held.max_attempts} used"
    change = Change(waiting_for=waiting, retry_after=wait)
    transition(session, held.job_id, Status.QUEUED, change)
    wake(session, "jobs")
    return Status.QUEUED


def _pause(session: Session, held: Held, ending: Ending) -> Status:
    """Let the job wait for a resume; whatever ended its attempt, it would have waited anyway."""
    message = PAUSED if ending.outcome == "interrupted" else ending.message
    data = _interrupted(held, message)
    append_events(session, held.job_id, [{"type": "attempt", "data": data}], held.attempt_id)
    transition(session, held.job_id, Status.PAUSED)
    return Status.PAUSED


def _interrupted(held: Held, message: str) -> dict[str, Any]:
    return {"event": "interrupted", "number": held.number, "message": message}


_RELEASE = text(
    """
    UPDATE attempts SET released_at = now(), cleanup_error = NULL
    WHERE id = :attempt_id AND released_at IS NULL AND finished_at IS NOT NULL
    """
)


_KEEP = text(
    "UPDATE attempts SET cleanup_error = :error WHERE id = :attempt_id AND released_at IS NULL"
)


def release(session: Session, attempt_id: str, error: str | None = None) -> None:
    """Give the attempt's devices back; with `error` they stay taken, and the error is kept.

    The outcome is never touched. Releasing twice is silent, so is releasing an open attempt.
    """
    values = {"attempt_id": attempt_id, "error": error}
    if error is not None:
        session.execute(_KEEP, values)
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
    """End an attempt whose holder is gone; None when it lives after all.

    Its devices are released with it only when its host is gone, too. A host that is up looks first
    whether holder and trainer are really gone (`worker.sweep`): they may just stand still.
    """
    found = lock(session, attempt_id)
    if found is None:
        return None
    lost = session.execute(_IS_LOST, {"attempt_id": attempt_id, **_limits()}).first()
    if lost is None:
        return None
    message = "the machine or its worker stopped answering"
    status = end_attempt(session, found[0], Ending("lost", FailureReason.MACHINE_LOST, message))
    if not host_is_up(session, found[0].worker_id):
        release(session, attempt_id)
    return status
