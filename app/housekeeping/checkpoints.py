"""Checkpoints that nobody starts from: retired in Postgres first, then purged in the store.

A retired one is marked as purged when its objects are gone, so that a store that is away, a back-up
that holds it, or a process that dies in between leaves it to the next round.
"""

from collections.abc import Sequence

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from app.attempts.commits import mark_purged
from app.db import transaction
from app.housekeeping.report import Report
from app.settings import get_settings
from app.storage import Store

_PAGE = 100
_UNUSED = """
    NOT EXISTS (SELECT FROM jobs o WHERE o.start_from ->> 'prefix' = c.prefix
        AND o.status NOT IN ('succeeded', 'failed', 'cancelled'))
"""
_SUCCEEDED = text(
    f"""
    SELECT c.id, c.prefix, c.size FROM checkpoints c JOIN jobs j ON j.id = c.job_id
    WHERE c.deleted_at IS NULL AND j.status = 'succeeded'
        AND j.finished_at < now() - CAST(:days AS float) * interval '1 day' AND {_UNUSED}
    ORDER BY c.id LIMIT 1000
    """  # noqa: S608 - constants
)
_RETIRE = text("UPDATE checkpoints SET deleted_at = now() WHERE id = ANY(:ids)")
_RETIRED = text(
    f"""
    SELECT c.id, c.prefix, c.size FROM checkpoints c
    WHERE c.deleted_at IS NOT NULL AND c.purged_at IS NULL AND c.id > :after AND {_UNUSED}
    ORDER BY c.id LIMIT :limit
    """  # noqa: S608 - constants
)


def retire_checkpoints(session: Session, report: Report) -> None:
    """Retire checkpoints of jobs that succeeded long ago.

    Nothing resumes from them: a job that has succeeded is retried from scratch only.
    """
    rows = session.execute(_SUCCEEDED, {"days": get_settings().checkpoint_days}).all()
    if report.dry_run:
        _count(report, rows)
    else:
        session.execute(_RETIRE, {"ids": [row.id for row in rows]})


def purge_checkpoints(objects: Store, report: Report) -> None:
    """Delete what is left of retired checkpoints, or only count it; raises StoreUnavailable."""
    report.add("checkpoints", 0)
    after = ""
    while True:
        with transaction() as session:
            page = {"after": after, "limit": _PAGE}
            rows = session.execute(_RETIRED, page).all()
        for row in () if report.dry_run else rows:
            objects.delete_prefix(row.prefix)
            with transaction() as session:
                mark_purged(session, row.prefix)
        _count(report, rows)
        if len(rows) < _PAGE:
            return
        after = rows[-1].id


def _count(report: Report, rows: Sequence[Row[tuple[str, str, int]]]) -> None:
    size = sum(row.size for row in rows)
    report.add("checkpoints", len(rows), size, [row.prefix for row in rows])
