"""What the dialect reads of the tables: files, jobs, events and checkpoints by its own pages."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Row, Select, bindparam, func, select, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.orm import Session

from app.models import Attempt, CheckpointRow, Dataset, Job, ModelVersion, Preparation

TASKS = ("sft", "dpo")


def get_file(
    session: Session, project_id: str, dataset_id: str, *, deleted: bool = False
) -> Dataset | None:
    """Return the uploaded data set; what is only registered has no bytes here.

    `deleted` finds it also after it was deleted.
    """
    query = select(Dataset).where(*_was_uploaded(project_id), Dataset.id == dataset_id)
    return session.scalar(query if deleted else query.where(Dataset.deleted_at.is_(None)))


def list_files(
    session: Session, project_id: str, after: str | None, limit: int, *, newest_first: bool
) -> Sequence[Dataset]:
    """Return up to `limit` uploaded data sets that follow the id `after`."""
    query = select(Dataset).where(*_was_uploaded(project_id), Dataset.deleted_at.is_(None))
    if after is not None:
        query = query.where(Dataset.id < after if newest_first else Dataset.id > after)
    order = Dataset.id.desc() if newest_first else Dataset.id
    return session.scalars(query.order_by(order).limit(limit)).all()


def _was_uploaded(project_id: str) -> tuple[ColumnElement[bool], ...]:
    return Dataset.project_id == project_id, Dataset.source == "upload"


def list_jobs(
    session: Session, project_id: str, conditions: Sequence[ColumnElement[bool]], limit: int
) -> Sequence[Job]:
    """Return up to `limit` supervised and preference jobs, newest first."""
    query = select(Job).where(Job.project_id == project_id, Job.task_type.in_(TASKS), *conditions)
    return session.scalars(query.order_by(Job.id.desc()).limit(limit)).all()


class Beside(NamedTuple):
    """What stands of jobs in other tables, by job id."""

    versions: dict[str, ModelVersion]
    tokens: dict[str, int]


def beside(session: Session, job_ids: Sequence[str]) -> Beside:
    """Return what these jobs published, and how many tokens their prepared rows have."""
    versions = session.scalars(
        select(ModelVersion).where(
            ModelVersion.job_id.in_(job_ids), ModelVersion.deleted_at.is_(None)
        )
    )
    total = Preparation.report["total_tokens"].astext.cast(BigInteger)
    tokens = select(Preparation.job_id, total).where(Preparation.job_id.in_(job_ids))
    return Beside(
        {str(version.job_id): version for version in versions},
        {job_id: count for job_id, count in session.execute(tokens) if count is not None},
    )


_EVENTS = text(
    """
    SELECT seq, time, type, data FROM job_events
    WHERE job_id = :job_id AND type = ANY(:types) AND seq < :before
    ORDER BY seq DESC LIMIT :limit
    """
).bindparams(bindparam("types", type_=ARRAY(TEXT)))


def events_before(
    session: Session, job_id: str, types: Sequence[str], before: int, limit: int
) -> Sequence[Row[Any]]:
    """Return up to `limit` events (seq, time, type, data) that are not archived, newest first."""
    values = {"job_id": job_id, "types": list(types), "before": before, "limit": limit}
    return session.execute(_EVENTS, values).all()


def list_checkpoints(
    session: Session, job_id: str, after: str | None, limit: int
) -> Sequence[CheckpointRow]:
    """Return up to `limit` checkpoints that are kept, newest first."""
    query = _checkpoints(job_id)
    if after is not None:
        query = query.where(CheckpointRow.id < after)
    return session.scalars(query.order_by(CheckpointRow.id.desc()).limit(limit)).all()


def find_checkpoint(
    session: Session, project_id: str, job_id: str, step: int
) -> CheckpointRow | None:
    """Return the last attempt's checkpoint of this step."""
    query: Select[CheckpointRow] = (
        _checkpoints(job_id)
        .join(Attempt, Attempt.id == CheckpointRow.attempt_id)
        .where(CheckpointRow.project_id == project_id, CheckpointRow.step == step)
        .order_by(Attempt.number.desc())
    )
    return session.scalar(query.limit(1))


def _checkpoints(job_id: str) -> Select[CheckpointRow]:
    return select(CheckpointRow).where(
        CheckpointRow.job_id == job_id, CheckpointRow.deleted_at.is_(None)
    )


def has_model(session: Session, project_id: str, name: str) -> bool:
    """Say whether the project's registry has a model of this name."""
    query = select(func.count()).where(
        ModelVersion.project_id == project_id,
        ModelVersion.name == name,
        ModelVersion.deleted_at.is_(None),
    )
    return bool(session.scalar(query))


def succeeded_at(session: Session, project_id: str, job_id: str) -> datetime | None:
    """Return when a supervised or preference job succeeded; None where it has not."""
    return session.scalar(
        select(Job.finished_at).where(
            Job.project_id == project_id,
            Job.id == job_id,
            Job.task_type.in_(TASKS),
            Job.status == "succeeded",
        )
    )
