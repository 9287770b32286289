"""Puts jobs side by side: what differs in their specs, and what became of their metrics."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.comparison.fields import differing
from app.comparison.schemas import Compared, Comparison, ComparisonQuery, CurvePoint, Range
from app.db import transaction
from app.errors import NotFound
from app.models import Job
from app.series import service as series
from app.series.schemas import SeriesQuery

Curves = dict[str, list[CurvePoint]]


def compare(project_id: str, job_ids: Sequence[str], query: ComparisonQuery) -> Comparison:
    """Return these jobs side by side; raises NotFound, and StoreUnavailable for archived events.

    A job at a time is read, each in a transaction of its own.
    """
    with transaction() as session:
        jobs = _jobs(session, project_id, list(dict.fromkeys(job_ids)))
    fields = differing([job.resolved for job in jobs])
    return Comparison(
        jobs=[_compared(job, own, query) for job, own in zip(jobs, fields, strict=True)]
    )


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
