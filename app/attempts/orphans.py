"""Rows that do not belong together: nothing makes them, yet none of them may hang for ever."""

from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from app.attempts.endings import used_attempts
from app.attempts.store import wake
from app.jobs.lifecycle import LEGAL, Change, FailureReason, Status, transition
from app.outbox import PREPARE_QUEUE, hint

_ACTIVE = "('provisioning', 'running', 'finalizing')"
_LIVE = "EXISTS (SELECT FROM attempts a WHERE a.job_id = j.id AND a.finished_at IS NULL)"
_MESSAGE = "the job was found without an attempt"

_JOBS = text(
    f"""
    SELECT id, status, max_attempts, cancel_requested_at IS NOT NULL AS cancel,
        pause_requested_at IS NOT NULL AS pause
    FROM jobs j WHERE status IN {_ACTIVE} AND NOT {_LIVE}
    ORDER BY id LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED
    """  # noqa: S608 - constants
)
_ATTEMPTS = text(
    f"""
    UPDATE attempts SET outcome = 'lost', reason = 'internal', finished_at = now(),
        message = 'its job did not know of it'
    WHERE id IN (
        SELECT a.id FROM attempts a JOIN jobs j ON j.id = a.job_id
        WHERE a.finished_at IS NULL AND j.status NOT IN {_ACTIVE}
        ORDER BY a.id LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING id
    """  # noqa: S608 - constants
)
_PREPARATIONS = text(
    """
    INSERT INTO preparations AS p (job_id, project_id)
    SELECT j.id, j.project_id FROM jobs j LEFT JOIN preparations old ON old.job_id = j.id
    WHERE j.status = 'queued' AND j.prepared_key IS NULL
        AND (old.job_id IS NULL OR old.status IN ('done', 'failed'))
    ORDER BY j.id LIMIT 100
    ON CONFLICT (job_id) DO UPDATE SET status = 'waiting', lease_token = NULL,
        lease_expires_at = NULL, hinted_at = NULL, finished_at = NULL
        WHERE p.status IN ('done', 'failed')
    RETURNING job_id, project_id
    """
)


def adopt_orphans(session: Session) -> int:
    """Put right jobs without an attempt, attempts without a job, jobs whose data nobody prepares.

    Returns how many there were. What stands together in one transaction elsewhere cannot come
    apart; this is for the day on which it did.
    """
    jobs = session.execute(_JOBS).all()
    for job in jobs:
        status, change = _next(session, job)
        transition(session, job.id, status, change, sources=[Status(job.status)])
    attempts = session.execute(_ATTEMPTS).all()
    preparations = session.execute(_PREPARATIONS).all()
    for row in preparations:
        hint(session, row.project_id, PREPARE_QUEUE, "prepare", row.job_id)
    if jobs or attempts or preparations:
        wake(session, "jobs")
    return len(jobs) + len(attempts) + len(preparations)


def _next(session: Session, job: Row[Any]) -> tuple[Status, Change]:
    if job.cancel:
        return Status.CANCELLED, Change()
    if job.pause and Status.PAUSED in LEGAL[Status(job.status)]:
        return Status.PAUSED, Change()
    if used_attempts(session, job.id).used >= job.max_attempts:
        return Status.FAILED, Change(reason=FailureReason.INTERNAL, message=_MESSAGE)
    return Status.QUEUED, Change(waiting_for=f"another attempt: {_MESSAGE}")
