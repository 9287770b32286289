"""How much a host prepares at once, for jobs and plans, and who is called when there is room."""

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.outbox import PREPARE_QUEUE, hint
from app.settings import get_settings

PLANNED = """
    EXISTS (SELECT FROM plans q WHERE q.id = {0}.spec ->> 'plan_id'
        AND q.project_id = {0}.project_id AND q.expires_at > now()
        AND q.status IN ('waiting', 'running'))
"""
"""Whether a job's plan is being made, which makes the job's data too."""
_IS_PLANNED = text(f"SELECT {PLANNED.format('j')} FROM jobs j WHERE j.id = :id")  # noqa: S608


def is_planned(session: Session, job_id: str) -> bool:
    """Say whether a job waits for its plan."""
    return bool(session.scalar(_IS_PLANNED, {"id": job_id}))


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


_ROWS = {"prepare": ("preparations", "job_id"), "plan": ("plans", "id")}
"""By handler: whose hints they are."""
# Neither `hint_after` nor its doubling is waited for: the queue has readers, and one has room.
_LEAVE = {
    handler: text(
        f"""
        UPDATE {table} SET hinted_at = created_at - interval '1 day'
        WHERE {key} = :id AND status = 'waiting' AND EXISTS (
            SELECT FROM workers p CROSS JOIN LATERAL split_part(p.id, '.prepare.', 1) AS host
            WHERE p.kind = 'prepare' AND host <> :worker_id
                AND p.seen_at > now() - CAST(:timeout AS float) * interval '1 second'
                AND NOT EXISTS (SELECT FROM workers h WHERE h.id = host AND h.draining)
                AND :slots > {RUNNING_ON.format("host")})
        """  # noqa: S608 - constants
    )
    for handler, (table, key) in _ROWS.items()
}


def leave_to_others(session: Session, handler: str, identifier: str, worker_id: str) -> None:
    """Have a hint that met a full host sent again at once, where another has room."""
    settings = get_settings()
    values = {"slots": settings.prepare_slots, "timeout": settings.worker_timeout}
    session.execute(_LEAVE[handler], {"id": identifier, "worker_id": worker_id, **values})


_OTHERS = text(
    """
    SELECT 1 FROM workers me WHERE me.id = :worker_id AND me.draining AND EXISTS (
        SELECT FROM workers p WHERE p.kind = 'prepare'
            AND p.seen_at > now() - CAST(:timeout AS float) * interval '1 second'
            AND NOT EXISTS (SELECT FROM workers h
                WHERE h.draining AND starts_with(p.id, h.id || '.prepare.')))
    """
)


def pass_on(
    session: Session, handler: str, identifier: str, worker_id: str, project_id: str
) -> None:
    """Hint again what met a host that is being drained, where there is another."""
    values = {"worker_id": worker_id, "timeout": get_settings().worker_timeout}
    if session.execute(_OTHERS, values).first():
        hint(session, project_id, PREPARE_QUEUE, handler, identifier)


# A hint of just now is on its way still.
_NEXT_JOB = text(
    f"""
    UPDATE preparations SET hinted_at = now() WHERE job_id = (
        SELECT p.job_id FROM preparations p JOIN jobs j ON j.id = p.job_id
        WHERE p.status = 'waiting' AND j.status = 'queued' AND j.cancel_requested_at IS NULL
            AND (j.not_before IS NULL OR j.not_before <= now()) AND p.job_id <> :ended
            AND coalesce(p.hinted_at, p.created_at) < now() - interval '1 second'
            AND NOT {PLANNED.format("j")}
        ORDER BY p.created_at LIMIT 1 FOR NO KEY UPDATE OF p SKIP LOCKED)
    RETURNING job_id AS id, project_id
    """  # noqa: S608 - constants
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
