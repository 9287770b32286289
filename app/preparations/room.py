"""How much a host prepares at once, for jobs and plans, and who is called when there is room."""

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.outbox import PREPARE_QUEUE, hint
from app.settings import get_settings

RUNNING_ON = """
    ((SELECT count(*) FROM preparations r WHERE r.status = 'running'
        AND r.worker_id = {0} AND r.lease_expires_at > now())
    + (SELECT count(*) FROM plans r WHERE r.status = 'running'
        AND r.worker_id = {0} AND r.lease_expires_at > now()))
"""
_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(hashtextextended('prepare/' || :worker_id, 0))")
_HAS_ROOM = text(f"SELECT {RUNNING_ON.format(':worker_id')} < :slots")


def has_room(session: Session, worker_id: str) -> bool:
    """Say whether a host may begin one more; until the commit it begins no other."""
    session.execute(_ONE_AT_A_TIME, {"worker_id": worker_id})
    slots = {"worker_id": worker_id, "slots": get_settings().prepare_slots}
    return bool(session.execute(_HAS_ROOM, slots).scalar())


# A hint of just now is on its way still.
_NEXT_JOB = text(
    """
    UPDATE preparations SET hinted_at = now() WHERE job_id = (
        SELECT p.job_id FROM preparations p JOIN jobs j ON j.id = p.job_id
        WHERE p.status = 'waiting' AND j.status = 'queued' AND j.cancel_requested_at IS NULL
            AND (j.not_before IS NULL OR j.not_before <= now()) AND p.job_id <> :ended
            AND coalesce(p.hinted_at, p.created_at) < now() - interval '1 second'
        ORDER BY p.created_at LIMIT 1 FOR NO KEY UPDATE OF p SKIP LOCKED)
    RETURNING job_id AS id, project_id
    """
)
_NEXT_PLAN = text(
    """
    UPDATE plans SET hinted_at = now() WHERE id = (
        SELECT p.id FROM plans p
        WHERE p.status = 'waiting' AND p.expires_at > now() AND p.id <> :ended
            AND coalesce(p.hinted_at, p.created_at) < now() - interval '1 second'
        ORDER BY p.created_at LIMIT 1 FOR NO KEY UPDATE OF p SKIP LOCKED)
    RETURNING id, project_id
    """
)


def call_next(session: Session, ended: str) -> None:
    """Hint whoever has waited longest for a host with room: this one has room now.

    A job and a plan, so that neither kind waits for all of the other; `ended` is who made room.
    """
    for query, handler in ((_NEXT_JOB, "prepare"), (_NEXT_PLAN, "plan")):
        for row in session.execute(query, {"ended": ended}).all():
            hint(session, row.project_id, PREPARE_QUEUE, handler, row.id)
