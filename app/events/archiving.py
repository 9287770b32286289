"""Moves events of jobs that ended long ago from Postgres to the object store, range by range.

A range is written first, then one transaction notes it and deletes its rows: whoever reads sees the
events in one place or the other. A range that was written and not noted is written again.

Two archivers at once do no harm: a range's key names its content, so that nobody writes another one
over it, and who comes too late deletes only what is noted nowhere.
"""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from app.db import statement, transaction
from app.events.archive import ArchivedEvent, pack
from app.events.source import EVENT_JSON
from app.storage import Store, join_key

RANGE_EVENTS = 2000
RANGE_CHARACTERS = 2**20
AT_ONCE = 50
_log = logging.getLogger(__name__)

# MLflow's mirror reads metrics from Postgres, so a job waits until its run is closed or given up.
_DUE = text(
    """
    SELECT id, project_id, archived_seq, last_seq FROM jobs j
    WHERE archived_seq < last_seq AND finished_at IS NOT NULL
        AND finished_at < now() - CAST(:days AS float) * interval '1 day'
        AND NOT EXISTS (
            SELECT FROM mlflow_runs m WHERE m.job_id = j.id AND m.closed_status IS NULL)
    ORDER BY finished_at LIMIT :limit
    """
)
_EVENTS = text(
    f"""
    SELECT e.seq, e.type, e.attempt_id, {EVENT_JSON} AS json, e.xid FROM job_events e
    WHERE e.job_id = :job_id AND e.seq > :after ORDER BY e.seq LIMIT :limit
    """  # noqa: S608 - constants only
)
_LOCK = text("SELECT 1 FROM jobs WHERE id = :job_id AND archived_seq = :before FOR NO KEY UPDATE")
_NOTE = text(
    """
    INSERT INTO event_ranges
        (job_id, first_seq, last_seq, project_id, key, size, sha256, counts, last_xid)
    VALUES (:job_id, :first_seq, :last_seq, :project_id, :key, :size, :sha256,
        CAST(:counts AS jsonb), :last_xid)
    """
)
_REACHED = text("UPDATE jobs SET archived_seq = :last_seq WHERE id = :job_id")
_IS_NOTED = text("SELECT EXISTS (SELECT FROM event_ranges WHERE key = :key AND job_id = :job_id)")
_DELETE = text(
    "DELETE FROM job_events WHERE job_id = :job_id AND seq BETWEEN :first_seq AND :last_seq"
)


@dataclass(frozen=True)
class _Job:
    id: str
    project_id: str
    archived_seq: int
    last_seq: int


def archive_events(objects: Store, days: float, seconds: float) -> int:
    """Archive jobs that ended `days` ago, for so many seconds; returns how many events moved.

    Raises StoreUnavailable; what has moved before stays moved.
    """
    deadline = time.monotonic() + seconds
    moved = 0
    while time.monotonic() < deadline:
        with statement() as session:
            rows = session.execute(_DUE, {"days": days, "limit": AT_ONCE})
            due = [_Job(*row) for row in rows]
        for job in due:
            moved += _archive_job(objects, job, deadline)
        if len(due) < AT_ONCE:
            break
    return moved


def _archive_job(objects: Store, job: _Job, deadline: float) -> int:
    reached = job.archived_seq
    while reached < job.last_seq and time.monotonic() < deadline:
        last = _archive_range(objects, job, reached)
        if last is None:
            break
        reached = last
    return reached - job.archived_seq


def _archive_range(objects: Store, job: _Job, before: int) -> int | None:
    """Move the next range; returns its last seq, None when the job has changed meanwhile."""
    with statement() as session:
        values = {"job_id": job.id, "after": before, "limit": RANGE_EVENTS}
        rows = _fitting(session.execute(_EVENTS, values).all())
    if not rows:
        return None
    data = pack(ArchivedEvent(row.seq, row.type, row.attempt_id, row.json) for row in rows)
    # From behind the last range on: a restore leaves numbers out, and ranges follow each other.
    first, last = before + 1, rows[-1].seq
    digest = hashlib.sha256(data).hexdigest()
    name = f"{first:012d}-{last:012d}-{digest[:16]}.gz"
    key = archive_prefix(job.project_id, job.id) + name
    objects.put_bytes(key, data)
    noted = {
        "job_id": job.id,
        "project_id": job.project_id,
        "before": before,
        "first_seq": first,
        "last_seq": last,
        "key": key,
        "size": len(data),
        "sha256": digest,
        "counts": to_json(Counter(row.type for row in rows)).decode(),
        "last_xid": max(row.xid for row in rows),
    }
    with transaction() as session:
        if _move(session, noted):
            return int(last)
    _log.info("job %s was changed or deleted while it was archived", job.id)
    _forget(objects, noted)
    return None


def _forget(objects: Store, noted: dict[str, Any]) -> None:
    """Delete a range that came too late, unless it is the one that was noted.

    Who noted has committed: we waited for their lock. From now on nobody notes this range any more,
    because the job is archived beyond its beginning, or gone.
    """
    with statement() as session:
        is_noted = session.scalar(_IS_NOTED, noted)
    if not is_noted:
        objects.delete(noted["key"])


def _move(session: Session, noted: dict[str, Any]) -> bool:
    if session.execute(_LOCK, noted).first() is None:
        return False
    for step in (_NOTE, _REACHED, _DELETE):
        session.execute(step, noted)
    return True


def _fitting(rows: Sequence[Row[Any]]) -> list[Row[Any]]:
    """Return the first rows whose text fits into one range: at least one."""
    size = 0
    fitting: list[Row[Any]] = []
    for row in rows:
        size += len(row.json)
        if fitting and size > RANGE_CHARACTERS:
            break
        fitting.append(row)
    return fitting


def archive_prefix(project_id: str, job_id: str) -> str:
    """Return where a job's archived events lie in the store."""
    return join_key(project_id, "jobs", job_id, "events") + "/"
