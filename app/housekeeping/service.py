"""What is thrown away by the clock: answers remembered too long, dead workers, unused data."""

import logging
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.db import get_engine, transaction
from app.settings import get_settings
from app.storage import Store, join_key

# A host's row names its machine in the attempts that ran there, so it stays longer than others.
WORKER_HOURS, HOST_DAYS = 1, 30
PREPARED_DAYS = 30
UPLOAD_AGE = timedelta(days=1)
_log = logging.getLogger(__name__)


def keep_house(objects: Store) -> dict[str, int]:
    """Throw away what nobody needs; returns how much of what. Only one caller works at a time.

    Raises StoreUnavailable; what was thrown away before stays so.
    """
    with get_engine().connect() as alone:
        lock = text("SELECT pg_try_advisory_lock(hashtext('polar.housekeeping'))")
        if not alone.execute(lock).scalar():
            return {}
        alone.commit()
        try:
            done = _keep_house(objects)
        finally:
            alone.execute(text("SELECT pg_advisory_unlock(hashtext('polar.housekeeping'))"))
            alone.commit()
    _log.info("housekeeping", extra={"fields": done})
    return done


def _keep_house(objects: Store) -> dict[str, int]:
    with transaction() as session:
        done = {
            "idempotency_keys": forget_answers(session),
            "workers": forget_workers(session),
        }
        unused = unused_data(session)
    done["uploads"] = objects.abort_uploads(UPLOAD_AGE)
    done["prepared"] = sum(_drop_prepared(objects, project, key) for project, key in unused)
    return done


def forget_answers(session: Session) -> int:
    """Delete idempotency keys that are older than they are promised to be kept."""
    return _deleted(
        session,
        "DELETE FROM idempotency_keys"
        " WHERE created_at < now() - CAST(:hours AS float) * interval '1 hour' RETURNING 1",
        hours=get_settings().idempotency_hours,
    )


def forget_workers(session: Session) -> int:
    """Delete rows of processes that have long been gone and hold nothing."""
    return _deleted(
        session,
        "DELETE FROM workers w WHERE seen_at < now() - CASE WHEN kind = 'host'"
        " THEN CAST(:days AS float) * interval '1 day'"
        " ELSE CAST(:hours AS float) * interval '1 hour' END"
        " AND NOT EXISTS (SELECT FROM devices d WHERE d.worker_id = w.id"
        "   AND d.attempt_id IS NOT NULL) RETURNING 1",
        days=HOST_DAYS,
        hours=WORKER_HOURS,
    )


def _deleted(session: Session, statement: str, **values: float) -> int:
    return len(session.execute(text(statement), values).all())


_IN_USE = (
    "j.status NOT IN ('succeeded', 'failed', 'cancelled')"
    " OR j.finished_at > now() - CAST(:days AS float) * interval '1 day'"
)


def unused_data(session: Session) -> list[tuple[str, str]]:
    """Return (project, key) of prepared data whose jobs all ended long ago."""
    rows = session.execute(
        text(
            "SELECT j.project_id, j.prepared_key FROM jobs j WHERE j.prepared_key IS NOT NULL"  # noqa: S608
            f" GROUP BY 1, 2 HAVING NOT bool_or({_IN_USE}) LIMIT 1000"
        ),
        {"days": PREPARED_DAYS},
    )
    return [(row[0], row[1]) for row in rows]


def _drop_prepared(objects: Store, project_id: str, key: str) -> bool:
    """Delete prepared data, unless a job began to use it meanwhile; ended jobs forget it."""
    with transaction() as session:
        used = session.execute(
            text(
                "SELECT 1 FROM jobs j WHERE j.project_id = :project AND j.prepared_key = :key"  # noqa: S608
                f" AND ({_IN_USE})"
            ),
            {"project": project_id, "key": key, "days": PREPARED_DAYS},
        ).first()
        if used is not None:
            return False
        session.execute(
            text(
                "UPDATE jobs SET prepared_key = NULL"
                " WHERE project_id = :project AND prepared_key = :key"
            ),
            {"project": project_id, "key": key},
        )
    prefix = join_key(project_id, "prepared", key)
    objects.delete(f"{prefix}/manifest.json")  # first: what has no manifest is not used again
    objects.delete_prefix(f"{prefix}/")
    return True
