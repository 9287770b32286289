"""Puts jobs side by side: what differs in their specs, and what became of their metrics."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.comparison.fields import differing
from app.comparison.schemas import Compared, Comparison, ComparisonQuery, CurvePoint, Range
from app.db import transaction
from app.errors import BadRequest, NotFound
from app.models import Job
from app.series import service as series
from app.series.schemas import SeriesQuery

LARGEST = 8 * 2**20
"""Characters of JSON after which a page ends; a larger job is alone on its page."""

Curves = dict[str, list[CurvePoint]]


def compare(project_id: str, job_ids: Sequence[str], query: ComparisonQuery) -> Comparison:
    """Return a page of these jobs side by side, with the fields in which any of them differ.

    Raises NotFound, BadRequest for a cursor that is none, and StoreUnavailable for archived events.
    A job at a time is read, each in a transaction of its own.
    """
    wanted = list(dict.fromkeys(job_ids))
    start = _start(wanted, query.cursor)
    with transaction() as session:
        jobs = _jobs(session, project_id, wanted)
    fields = differing([job.resolved for job in jobs])
    page: list[Compared] = []
    size = 0
    for job, own in zip(jobs[start:], fields[start:], strict=True):
        compared = _compared(job, own, query)
        size += len(compared.model_dump_json())
        if page and size > LARGEST:
            break
        page.append(compared)
        if len(page) == query.limit:
            break
    more = start + len(page) < len(jobs)
    return Comparison(jobs=page, next_cursor=page[-1].id if more else None)


def _start(job_ids: list[str], cursor: str | None) -> int:
    if cursor is None:
        return 0
    if cursor not in job_ids:
        message = f"cursor {cursor[:60]!r} is not from a page of this list, or its job is gone"
        raise BadRequest(message, "invalid_cursor")
    return job_ids.index(cursor) + 1


def _jobs(session: Session, project_id: str, job_ids: Sequence[str]) -> list[Job]:
    query = select(Job).where(Job.project_id == project_id, Job.id.in_(job_ids))
    found = {job.id: job for job in session.scalars(query)}
    for job_id in job_ids:
        if job_id not in found:
            raise NotFound(f"there is no job {job_id}", "job_not_found")
    return [found[job_id] for job_id in job_ids]


def _compared(job: Job, fields: dict[str, object], query: ComparisonQuery) -> Compared:
    curves = read_curves(job.project_id, job.id, query.names, query.max_points)
    return Compared(
        id=job.id,
        name=job.name,
        status=job.status,
        fields=fields,
        metrics={name: _range(points) for name, points in curves.items()},
        curves=curves,
    )


def read_curves(project_id: str, job_id: str, names: str | None, max_points: int) -> Curves:
    """Return a job's metrics as points [step, value]; the extremes of each are among them."""
    source = series.find(project_id, job_id)
    wanted = SeriesQuery(names=names, max_points=max_points, format=None)
    with series.read_points(source, wanted) as points:
        found = series.by_name(points)
    return {name: [(step, value) for step, value, _ in own] for name, own in found.items()}


def _range(points: Sequence[CurvePoint]) -> Range:
    values = [value for _, value in points]
    return Range(last=values[-1], smallest=min(values), largest=max(values))
