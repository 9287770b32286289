"""Data sets in Postgres."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.orm import Session

from app.models import Dataset


@dataclass(frozen=True)
class NewDataset:
    """A version about to be written."""

    id: str
    project_id: str
    name: str
    version: int
    source: str
    location: str
    file_name: str | None = None
    size: int | None = None
    sha256: str | None = None
    file_format: str | None = None
    row_format: str | None = None
    columns: list[str] | None = None
    rows: int | None = None
    problems: list[dict[str, Any]] = field(default_factory=list)


def next_version(session: Session, project_id: str, name: str, *, lock: bool = False) -> int:
    """Return the name's next version; with `lock` nobody else gets it before the commit."""
    if lock:
        statement = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
        session.execute(statement, {"name": f"dataset/{project_id}/{name}"})
    newest = select(func.max(Dataset.version)).where(
        Dataset.project_id == project_id, Dataset.name == name
    )
    return (session.scalar(newest) or 0) + 1


def count(session: Session, project_id: str) -> int:
    """Return how many data sets the project has, all versions."""
    query = select(func.count()).where(
        Dataset.project_id == project_id, Dataset.deleted_at.is_(None)
    )
    return session.scalar(query) or 0


def insert_dataset(session: Session, new: NewDataset) -> Dataset:
    """Write the version."""
    session.execute(insert(Dataset).values(vars(new)))
    return session.scalars(select(Dataset).where(Dataset.id == new.id)).one()


def get_dataset(
    session: Session, project_id: str, dataset_id: str, *, deleted: bool = False
) -> Dataset | None:
    """Return the project's data set; with `deleted` also one that was deleted."""
    query = select(Dataset).where(Dataset.project_id == project_id, Dataset.id == dataset_id)
    return session.scalar(query if deleted else query.where(Dataset.deleted_at.is_(None)))


def get_version(session: Session, project_id: str, name: str, version: int) -> Dataset | None:
    """Return one version of a name."""
    query = select(Dataset).where(
        Dataset.project_id == project_id,
        Dataset.name == name,
        Dataset.version == version,
        Dataset.deleted_at.is_(None),
    )
    return session.scalar(query)


def list_datasets(
    session: Session, project_id: str, name: str | None, before: str | None, limit: int
) -> Sequence[Dataset]:
    """Return up to `limit` data sets, newest first, that are older than the id `before`."""
    query = select(Dataset).where(Dataset.project_id == project_id, Dataset.deleted_at.is_(None))
    if name is not None:
        query = query.where(Dataset.name == name)
    if before is not None:
        query = query.where(Dataset.id < before)
    return session.scalars(query.order_by(Dataset.id.desc()).limit(limit)).all()


# A job's resolved spec names uploads by the id of the version that is read.
_USER = text(
    """
    SELECT id FROM jobs
    WHERE project_id = :project_id AND status NOT IN ('succeeded', 'failed', 'cancelled')
        AND jsonb_path_exists(resolved, 'lax $.data.*[*] ? (@.path == $id)',
            jsonb_build_object('id', CAST(:id AS text)))
    LIMIT 1
    """
)


def open_user(session: Session, dataset: Dataset) -> str | None:
    """Return an open job that reads the data set, if there is one."""
    values = {"project_id": dataset.project_id, "id": dataset.id}
    found: str | None = session.scalar(_USER, values)
    return found


def mark_deleted(session: Session, dataset_id: str) -> None:
    """Take it out of all lists; marking again keeps the first time."""
    session.execute(
        update(Dataset)
        .where(Dataset.id == dataset_id)
        .values(deleted_at=func.coalesce(Dataset.deleted_at, func.now()))
    )
