"""Second looks that the reconciler takes: hints that nobody claims, and holders that hang.

A holder watches its trainer itself, by the same settings; what is ended here is a holder that does
not. Its lease is refused from then on, and its devices come back once the lease has run out.
"""

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.attempts.endings import Ending, end_attempt, release
from app.attempts.store import lock
from app.jobs.lifecycle import FailureReason, Status
from app.settings import get_settings

# What a holder may need to end a stalled trainer, upload its last checkpoint and say so.
MARGIN = 900.0

# A hint that still waits for the broker is not the host's fault.
_UNCLAIMED = """
    a.finished_at IS NULL AND a.claimed_at IS NULL AND a.target <> 'fake'
    AND a.created_at < now() - CAST(:claim AS float) * interval '1 second'
    AND NOT EXISTS (SELECT FROM outbox o WHERE o.handler = 'run' AND o.args ->> 0 = a.id)
"""
_SILENT = """
    a.finished_at IS NULL AND a.claimed_at IS NOT NULL
    AND now() - greatest(a.claimed_at, a.event_at, j.updated_at) > interval '1 second' * CAST(
        :margin + CASE WHEN j.status = 'finalizing' THEN :publish
            WHEN a.event_at IS NULL THEN :fetch + :start ELSE :stall END AS float)
"""
_FIND = """
    SELECT a.id FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE {0} ORDER BY a.id LIMIT 100
"""
_IS = "SELECT 1 FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE a.id = :attempt_id AND {0}"
_FIND_UNCLAIMED, _IS_UNCLAIMED = text(_FIND.format(_UNCLAIMED)), text(_IS.format(_UNCLAIMED))
_FIND_SILENT, _IS_SILENT = text(_FIND.format(_SILENT)), text(_IS.format(_SILENT))


def overdue(session: Session) -> list[str]:
    """Return attempts whose hint nobody took, or whose holder hangs; pass each to `end_overdue`."""
    limits = _limits()
    unclaimed = session.execute(_FIND_UNCLAIMED, {"claim": limits.pop("claim")}).scalars()
    return [*unclaimed, *session.execute(_FIND_SILENT, limits).scalars()]


def end_overdue(session: Session, attempt_id: str) -> Status | None:
    """End such an attempt; None when it moved meanwhile."""
    found = lock(session, attempt_id)
    if found is None:
        return None
    limits = _limits()
    claim = limits.pop("claim")
    if session.execute(_IS_UNCLAIMED, {"claim": claim, "attempt_id": attempt_id}).first():
        message = f"its host took no notice of the hint within {claim:g} s"
        ending = Ending("interrupted", FailureReason.PROVISIONING_FAILED, message)
        status = end_attempt(session, found[0], ending)
        release(session, attempt_id)
        return status
    if session.execute(_IS_SILENT, {**limits, "attempt_id": attempt_id}).first():
        message = "its supervisor has said nothing for too long"
        return end_attempt(session, found[0], Ending("lost", FailureReason.STALLED, message))
    return None


def _limits() -> dict[str, float]:
    settings = get_settings()
    return {
        "claim": settings.claim_timeout,
        "fetch": settings.fetch_timeout,
        "start": settings.start_timeout,
        "stall": settings.stall_timeout,
        "publish": settings.publish_timeout,
        "margin": settings.grace + MARGIN,
    }
