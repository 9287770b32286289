"""Prepared data that no job needs any more, removed so that no job can begin to use them meanwhile.

Who is about to use prepared data announces their key (`app.preparations.service.announce`), under
the shared lock of that key; here it is held exclusively from the last look at who uses them to the
deletion of their last object. So a user either is seen and they stay, or waits and makes them anew.
"""

from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.db import get_engine, transaction
from app.housekeeping.report import Report
from app.preparations.service import prepared_lock
from app.settings import get_settings
from app.storage import Store, join_key

_IN_USE = (
    "j.status NOT IN ('succeeded', 'failed', 'cancelled')"
    " OR j.finished_at > now() - CAST(:days AS float) * interval '1 day'"
)
_UNUSED = text(
    "SELECT j.project_id, j.prepared_key FROM jobs j WHERE j.prepared_key IS NOT NULL"  # noqa: S608
    f" GROUP BY 1, 2 HAVING NOT bool_or({_IN_USE}) LIMIT 1000"
)
_USED = text(
    "SELECT 1 FROM jobs j WHERE j.project_id = :project AND j.prepared_key = :key"  # noqa: S608
    f" AND ({_IN_USE})"
    " UNION ALL SELECT 1 FROM preparations p"
    " WHERE p.project_id = :project AND p.key = :key AND p.status = 'running'"
    " UNION ALL SELECT 1 FROM plans p WHERE p.project_id = :project AND p.key = :key"
    " AND p.status <> 'failed' AND p.expires_at > now() LIMIT 1"
)
_FORGET = text(
    "UPDATE jobs SET prepared_key = NULL WHERE project_id = :project AND prepared_key = :key"
)
_KNOWN = text(
    "SELECT prepared_key FROM jobs WHERE project_id = :project AND prepared_key IS NOT NULL"
    " UNION SELECT key FROM plans WHERE project_id = :project AND key IS NOT NULL"
)


def unused(session: Session) -> list[tuple[str, str]]:
    """Return (project, key) of prepared data whose jobs all ended long ago."""
    rows = session.execute(_UNUSED, {"days": get_settings().prepared_days})
    return [(row[0], row[1]) for row in rows]


def unknown(objects: Store, project: str) -> Iterator[tuple[str, str]]:
    """Yield (project, key) of old prepared data in the store that no job and no plan names."""
    keys = list(objects.list_folders(f"{project}/prepared/"))
    with transaction() as session:
        known = set(session.execute(_KNOWN, {"project": project}).scalars())
    limit = objects.now() - timedelta(days=get_settings().prepared_days)
    for key in keys:
        if key not in known:
            found = list(objects.list_objects(f"{project}/prepared/{key}/"))
            if found and all(item.modified is not None and item.modified < limit for item in found):
                yield project, key


def drop(objects: Store, project: str, key: str, report: Report) -> None:
    """Delete prepared data, unless a job uses them by now; ended jobs forget them."""
    with get_engine().connect() as alone:
        lock = {"name": prepared_lock(project, key)}
        got = alone.scalar(text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))"), lock)
        alone.commit()
        if not got:
            return
        try:
            _drop(objects, project, key, report)
        finally:
            alone.execute(text("SELECT pg_advisory_unlock(hashtextextended(:name, 0))"), lock)
            alone.commit()


def _drop(objects: Store, project: str, key: str, report: Report) -> None:
    values = {"project": project, "key": key, "days": get_settings().prepared_days}
    with transaction() as session:
        if session.execute(_USED, values).first() is not None:
            return
        if not report.dry_run:
            session.execute(_FORGET, values)
    prefix = join_key(project, "prepared", key)
    found = list(objects.list_objects(f"{prefix}/"))
    if not report.dry_run:
        objects.delete(f"{prefix}/manifest.json")  # first: what has no manifest is not used again
        objects.delete_all([item.key for item in found])
    report.add("prepared", 1, sum(item.size for item in found), [f"{prefix}/"])
