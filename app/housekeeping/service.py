"""What ends by the clock: answers remembered too long, dead workers, unused data, mirrors."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.db import get_engine, transaction
from app.events.archiving import archive_events
from app.housekeeping import checkpoints, orphans, prepared, report
from app.housekeeping.report import Report
from app.settings import get_settings
from app.storage import Store, StoreUnavailable
from app.tracking.store import give_up
from app.uploads.store import delete_over

# A host's row names its machine in the attempts that ran there, so it stays longer than others.
WORKER_HOURS, HOST_DAYS = 1, 30
DELIVERY_DAYS = 30
HOLD_DAYS = 30
UPLOAD_AGE = timedelta(days=3)
SCAN_HOURS = 23.5
ARCHIVE_SECONDS = 600.0  # of one turn; the next one goes on
_log = logging.getLogger(__name__)


def keep_house(objects: Store, *, dry_run: bool = False, scan: bool | None = None) -> Report | None:
    """Throw away what nobody needs; returns what, None when someone else is at it.

    Once a day, or with `scan`, the whole store is looked through. With `dry_run` nothing changes
    but for the report, which is kept too. Raises StoreUnavailable; what was thrown away before
    stays so.
    """
    done, began = Report(dry_run), time.monotonic()
    with _alone() as free:
        if not free:
            return None
        try:
            _keep_house(objects, done, scan=scan)
        except StoreUnavailable as error:
            done.error = error.message
            raise
        finally:
            with transaction() as session:
                report.keep(session, done, time.monotonic() - began)
    kept = {"dry_run": dry_run, "scanned": done.scanned, "removed": done.document()}
    _log.info("housekeeping", extra={"fields": kept})
    return done


@contextmanager
def _alone() -> Iterator[bool]:
    with get_engine().connect() as alone:
        lock = text("SELECT pg_try_advisory_lock(hashtext('polar.housekeeping'))")
        free = bool(alone.execute(lock).scalar())
        alone.commit()
        try:
            yield free
        finally:
            if free:
                alone.execute(text("SELECT pg_advisory_unlock(hashtext('polar.housekeeping'))"))
                alone.commit()


def _keep_house(objects: Store, done: Report, *, scan: bool | None) -> None:
    over = _forget_rows(done)
    for project, upload in () if done.dry_run else over:
        objects.delete_prefix(f"{project}/uploads/{upload}/")
    with transaction() as session:
        checkpoints.retire_checkpoints(session, done)
        unused = prepared.unused(session)
        projects = list(session.execute(text("SELECT id FROM projects")).scalars())
        done.scanned = not report.scanned_lately(session, SCAN_HOURS) if scan is None else scan
    checkpoints.purge_checkpoints(objects, done)
    if not done.dry_run:
        days = get_settings().archive_days
        done.add("archived_events", archive_events(objects, days, ARCHIVE_SECONDS))
    done.add("prepared", 0)
    for project, key in unused:
        prepared.drop(objects, project, key, done)
    _abort_uploads(objects, done)
    for project in projects if done.scanned else ():
        for _, key in prepared.unknown(objects, project):
            prepared.drop(objects, project, key, done)
        orphans.drop_orphans(objects, project, done)


def _forget_rows(done: Report) -> list[tuple[str, str]]:
    """Delete rows that are over; returns (project, id) of uploads whose objects can go now."""
    with transaction() as session:
        done.add("idempotency_keys", forget_answers(session))
        done.add("plans", forget_plans(session))
        done.add("webhook_deliveries", forget_deliveries(session))
        done.add("holds", forget_holds(session))
        done.add("workers", forget_workers(session))
        done.add("mlflow_runs", give_up(session))
        over = delete_over(session, get_settings().upload_hours)
        done.add("unfinished_uploads", len(over), examples=[upload for _, upload in over])
        if done.dry_run:
            session.rollback()
    return over


def _abort_uploads(objects: Store, done: Report) -> None:
    stale = objects.stale_uploads(UPLOAD_AGE)
    done.add("uploads", len(stale), examples=[key for key, _ in stale])
    if stale and not done.dry_run:
        objects.abort_uploads(UPLOAD_AGE)


def forget_answers(session: Session) -> int:
    """Delete idempotency keys that are older than they are promised to be kept."""
    return _deleted(
        session,
        "DELETE FROM idempotency_keys"
        " WHERE created_at < now() - CAST(:hours AS float) * interval '1 hour' RETURNING 1",
        hours=get_settings().idempotency_hours,
    )


def forget_plans(session: Session) -> int:
    """Delete plans and previews whose time is over; one that is being made ends by itself."""
    return _deleted(
        session,
        "DELETE FROM plans WHERE expires_at < now() - interval '1 hour' RETURNING 1",
    )


def forget_holds(session: Session) -> int:
    """Delete what is known of devices that were held long ago."""
    return _deleted(
        session,
        "DELETE FROM holds"
        " WHERE expires_at < now() - CAST(:days AS float) * interval '1 day' RETURNING 1",
        days=HOLD_DAYS,
    )


def forget_deliveries(session: Session) -> int:
    """Delete what webhooks were told long ago; what is still to be told stays."""
    return _deleted(
        session,
        "DELETE FROM webhook_deliveries WHERE status <> 'pending'"
        " AND created_at < now() - CAST(:days AS float) * interval '1 day' RETURNING 1",
        days=DELIVERY_DAYS,
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
