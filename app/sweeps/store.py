"""Sweeps in Postgres."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.jobs.store import Once
from app.models import IdempotencyKey, Job, Sweep


def get_sweep(
    session: Session, project_id: str, sweep_id: str, *, lock: bool = False
) -> Sweep | None:
    """Return the project's sweep; `lock` keeps others from changing it until the commit."""
    query = select(Sweep).where(Sweep.project_id == project_id, Sweep.id == sweep_id)
    return session.scalar(query.with_for_update(key_share=True) if lock else query)


def list_sweeps(
    session: Session, project_id: str, status: str | None, before: str | None, limit: int
) -> Sequence[Sweep]:
    """Return a page of sweeps, newest first."""
    query = select(Sweep).where(Sweep.project_id == project_id)
    if status is not None:
        query = query.where(Sweep.status == status)
    if before is not None:
        query = query.where(Sweep.id < before)
    return session.scalars(query.order_by(Sweep.id.desc()).limit(limit)).all()


def runs(session: Session, sweep_id: str) -> Sequence[Job]:
    """Return the sweep's runs in their order, without those that were deleted."""
    return session.scalars(
        select(Job).where(Job.sweep_id == sweep_id).order_by(Job.sweep_run)
    ).all()


def counts(session: Session, sweep_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the number of runs by status, for each sweep."""
    query = (
        select(Job.sweep_id, Job.status, func.count())
        .where(Job.sweep_id.in_(sweep_ids))
        .group_by(Job.sweep_id, Job.status)
    )
    found: dict[str, dict[str, int]] = {sweep_id: {} for sweep_id in sweep_ids}
    for sweep_id, status, count in session.execute(query):
        found[str(sweep_id)][status] = count
    return found


_IS_MINE = text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))")


def take_key(session: Session, project_id: str, once: Once) -> bool:
    """Say whether nobody else answers a request with this key; so until the transaction ends."""
    name = f"{project_id}/{once.key}"  # as `app.jobs.store` locks it
    return once.key is None or bool(session.scalar(_IS_MINE, {"name": name}))


def remember(session: Session, project_id: str, once: Once, answer: dict[str, Any]) -> None:
    """Keep the answer under the key, in place of one that is too old."""
    if once.key is None:
        return
    values = {"body_hash": once.body_hash, "status_code": 201, "response": answer}
    new = insert(IdempotencyKey).values(project_id=project_id, key=once.key, **values)
    session.execute(
        new.on_conflict_do_update(
            index_elements=["project_id", "key"], set_={**values, "created_at": func.now()}
        )
    )


# One that could not be finished is behind all others.
_ENDED = text(
    """
    SELECT id, project_id FROM sweeps s
    WHERE status = 'running' AND finish_at <= now() AND NOT EXISTS (
        SELECT FROM jobs j WHERE j.sweep_id = s.id
            AND j.status NOT IN ('succeeded', 'failed', 'cancelled'))
    ORDER BY finish_at, id LIMIT 1
    """
)


def next_ended(session: Session) -> Row[Any] | None:
    """Return `id` and `project_id` of a running sweep whose runs have all ended; None: no such."""
    return session.execute(_ENDED).first()


_POSTPONE = text(
    """
    UPDATE sweeps SET finish_at = now() + CAST(:seconds AS float) * interval '1 second'
    WHERE id = :id AND status = 'running'
    """
)
_DAMAGED = text(
    """
    UPDATE sweeps SET reason = :reason, damaged_since = coalesce(damaged_since, now()),
        finish_at = now() + greatest(CAST(:seconds AS float) * interval '1 second',
            least(interval '1 hour', now() - coalesce(damaged_since, now())))
    WHERE id = :id AND status = 'running'
        AND coalesce(damaged_since, now()) > now() - CAST(:hours AS float) * interval '1 hour'
    RETURNING 1
    """
)


def postpone(session: Session, sweep_id: str, seconds: float) -> None:
    """Have a sweep that could not be finished tried again after so many seconds."""
    session.execute(_POSTPONE, {"id": sweep_id, "seconds": seconds})


def postpone_damaged(
    session: Session, sweep_id: str, reason: str, seconds: float, hours: float
) -> bool:
    """As `postpone`, later each time, and with the reason; False: so for `hours`, so no more."""
    values = {"id": sweep_id, "reason": reason, "seconds": seconds, "hours": hours}
    return session.execute(_DAMAGED, values).first() is not None
