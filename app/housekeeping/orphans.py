"""Objects that no row refers to: what was being written when its writer died, what outlived a row.

Only things that nobody can begin to refer to are judged: ended and released attempts, jobs and data
sets whose rows are gone. What is younger than `POLAR_ORPHAN_DAYS` is left alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text

from app.db import transaction
from app.housekeeping.report import Report
from app.settings import get_settings
from app.storage import ObjectInfo, Store
from trainer_core.publish.manifest import MANIFEST

_LOOKED_AT_DAYS = 8  # for how long the folders of an ended job are looked through


@dataclass(frozen=True)
class _Place:
    """A project's folder of the store."""

    objects: Store
    project: str
    report: Report
    limit: datetime  # by the store's clock: what is younger is left alone

    def old(self, found: Iterable[ObjectInfo]) -> list[ObjectInfo]:
        """Return those that are old, if all are: a younger one says that someone is at work."""
        items = list(found)
        everything = all(i.modified is not None and i.modified < self.limit for i in items)
        return items if everything else []

    def drop(self, kind: str, found: Sequence[ObjectInfo], example: str) -> None:
        """Delete these objects, or only count them."""
        if found:
            if not self.report.dry_run:
                self.objects.delete_all([item.key for item in found])
            self.report.add(kind, len(found), sum(item.size for item in found), [example])


def drop_orphans(objects: Store, project: str, report: Report) -> None:
    """Remove the project's orphans; raises StoreUnavailable."""
    limit = objects.now() - timedelta(days=get_settings().orphan_days)
    place = _Place(objects, project, report, limit)
    for kind in ("datasets", "uploads", "jobs", "pointers"):
        report.add(f"orphans_{kind}", 0)
    for kind in _KNOWN:
        _without_row(place, kind)
    for job in objects.list_folders(f"{project}/jobs/"):
        _job(place, job)
    _pointers(place)


# -- data sets and uploads ---------------------------------------------------------------------

_KNOWN = {
    "datasets": text("SELECT id FROM datasets WHERE project_id = :project AND deleted_at IS NULL"),
    "uploads": text("SELECT id FROM uploads WHERE project_id = :project"),
}


def _without_row(place: _Place, kind: str) -> None:
    folders = list(place.objects.list_folders(f"{place.project}/{kind}/"))
    with transaction() as session:  # after the list: what was committed before it is known
        known = set(session.execute(_KNOWN[kind], {"project": place.project}).scalars())
    for name in folders:
        if name not in known:
            prefix = f"{place.project}/{kind}/{name}/"
            place.drop(f"orphans_{kind}", place.old(place.objects.list_objects(prefix)), prefix)


# -- jobs --------------------------------------------------------------------------------------

_JOB = text(
    """
    SELECT finished_at IS NOT NULL
        AND finished_at > now() - CAST(:days AS int) * interval '1 day'
        AND finished_at < now() - CAST(:age AS float) * interval '1 day' AS looked_at
    FROM jobs WHERE id = :job
    """
)
_REFERENCES = text(
    """
    SELECT prefix FROM checkpoints WHERE job_id = :job AND purged_at IS NULL
    UNION ALL SELECT prefix FROM model_versions WHERE job_id = :job AND deleted_at IS NULL
    UNION ALL SELECT key FROM artifacts WHERE job_id = :job
    UNION ALL SELECT key FROM event_ranges WHERE job_id = :job
    UNION ALL SELECT start_from ->> 'prefix' FROM jobs WHERE start_from ->> 'job_id' = :job
        AND status NOT IN ('succeeded', 'failed', 'cancelled')
    UNION ALL SELECT project_id || '/jobs/' || job_id || '/' || id || '/' FROM attempts
        WHERE job_id = :job AND (released_at IS NULL
            OR released_at > now() - CAST(:age AS float) * interval '1 day')
    """
)


def _job(place: _Place, job: str) -> None:
    values = {"job": job, "days": _LOOKED_AT_DAYS, "age": get_settings().orphan_days}
    with transaction() as session:
        row = session.execute(_JOB, values).first()
        if row is not None and not row.looked_at:
            return
    prefix = f"{place.project}/jobs/{job}/"
    found = list(place.objects.list_objects(prefix))
    with transaction() as session:  # after the list: what was committed before it is known
        kept = [each for each in session.execute(_REFERENCES, values).scalars() if each]
    if row is None:
        kept += _left_on_purpose(prefix, found)
    unknown = [item for item in found if not _refers(kept, item.key)]
    place.drop("orphans_jobs", place.old(unknown), prefix)


def _refers(kept: list[str], key: str) -> bool:
    return any(key == each or (each.endswith("/") and key.startswith(each)) for each in kept)


def _left_on_purpose(prefix: str, found: list[ObjectInfo]) -> Iterator[str]:
    """Yield what a job leaves behind that is deleted without its artifacts: its whole models."""
    for item in found:
        if item.key.endswith(f"/model/{MANIFEST}") and item.key.startswith(prefix):
            attempt = item.key.removesuffix(f"model/{MANIFEST}")
            yield from (f"{attempt}model/", f"{attempt}report.json", f"{attempt}ledger.jsonl")


# -- models ------------------------------------------------------------------------------------

_GONE = text(
    """
    SELECT name, version, prefix FROM model_versions WHERE project_id = :project
        AND deleted_at > now() - CAST(:days AS int) * interval '1 day'
        AND deleted_at < now() - CAST(:age AS float) * interval '1 day'
    """
)


def _pointers(place: _Place) -> None:
    """Remove what is left of versions that were deleted while the store was away."""
    age = get_settings().orphan_days
    values = {"project": place.project, "days": _LOOKED_AT_DAYS, "age": age}
    with transaction() as session:
        gone = session.execute(_GONE, values).all()
    for row in gone:
        pointer = f"{place.project}/models/{row.name}/v{row.version}.json"
        left = [i for i in place.objects.list_objects(pointer) if i.key == pointer]
        left += place.objects.list_objects(row.prefix)
        place.drop("orphans_pointers", left, pointer)
