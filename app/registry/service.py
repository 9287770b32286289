"""Versions of published models: made once per job, found by name, deleted with their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.errors import BadRequest, Conflict, NotFound
from app.ids import new_id
from app.models import Artifact, ModelVersion
from app.storage import Store, join_key


@dataclass(frozen=True)
class NewVersion:
    """What a finished job publishes; `prefix` is the model's folder in the store, ending in '/'."""

    project_id: str
    name: str
    job_id: str
    prefix: str
    manifest_sha256: str
    kind: str
    base_model: str
    template_hash: str | None
    metrics: dict[str, Any]
    size: int


def create_version(session: Session, new: NewVersion) -> ModelVersion:
    """Commit the pointer: the next version of the model, or the one that the job made before.

    Safe against other publishers of the same name: they wait for this transaction. Version numbers
    are never used twice, deleted ones included.
    """
    lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
    session.execute(lock, {"name": f"model/{new.project_id}/{new.name}"})
    newest = select(func.coalesce(func.max(ModelVersion.version), 0)).where(
        ModelVersion.project_id == new.project_id, ModelVersion.name == new.name
    )
    version = session.scalar(newest) or 0
    values = {**vars(new), "id": new_id("mdl"), "version": version + 1}
    session.execute(
        insert(ModelVersion).values(values).on_conflict_do_nothing(index_elements=["job_id"])
    )
    made = select(ModelVersion).where(
        ModelVersion.job_id == new.job_id, ModelVersion.project_id == new.project_id
    )
    return session.scalars(made).one()


def pointer_key(version: ModelVersion) -> str:
    """Return the key of the version's pointer object."""
    return join_key(version.project_id, "models", version.name, f"v{version.version}.json")


def parse_version(value: str) -> int:
    """Return the number of `3` or `v3`; raises BadRequest."""
    digits = value.removeprefix("v")
    if not (digits.isascii() and digits.isdigit() and 0 < int(digits) < 2**31):
        raise BadRequest(f"{value!r} is not a version: write 1, 2, …", "invalid_version")
    return int(digits)


def find_version(
    session: Session, project_id: str, name: str, version: int | None = None
) -> ModelVersion:
    """Return the version, or the newest one for None; raises NotFound."""
    query = select(ModelVersion).where(
        ModelVersion.project_id == project_id,
        ModelVersion.name == name,
        ModelVersion.deleted_at.is_(None),
    )
    if version is not None:
        query = query.where(ModelVersion.version == version)
    found = session.scalar(query.order_by(ModelVersion.version.desc()).limit(1))
    if found is None:
        wanted = f"version {version} of model {name!r}" if version else f"model {name!r}"
        raise NotFound(f"there is no {wanted}: GET /models lists what is there", "model_not_found")
    return found


@dataclass(frozen=True)
class ModelSummary:
    """A model with its newest version."""

    name: str
    versions: int
    newest: ModelVersion


def list_models(
    session: Session, project_id: str, after: str | None, limit: int
) -> Sequence[ModelSummary]:
    """Return up to `limit` models by name, after the name `after`."""
    counted = (
        select(
            ModelVersion.name,
            func.count().label("versions"),
            func.max(ModelVersion.version).label("newest"),
        )
        .where(ModelVersion.project_id == project_id, ModelVersion.deleted_at.is_(None))
        .group_by(ModelVersion.name)
        .order_by(ModelVersion.name)
        .limit(limit)
    )
    if after is not None:
        counted = counted.where(ModelVersion.name > after)
    page = counted.subquery()
    rows = session.execute(
        select(ModelVersion, page.c.versions)
        .join(page, (ModelVersion.name == page.c.name) & (ModelVersion.version == page.c.newest))
        .where(ModelVersion.project_id == project_id)
        .order_by(ModelVersion.name)
    )
    return [ModelSummary(row.name, count, row) for row, count in rows]


def list_versions(
    session: Session, project_id: str, name: str, before: int | None, limit: int
) -> Sequence[ModelVersion]:
    """Return up to `limit` versions, newest first; raises NotFound for an unknown model."""
    find_version(session, project_id, name)
    query = select(ModelVersion).where(
        ModelVersion.project_id == project_id,
        ModelVersion.name == name,
        ModelVersion.deleted_at.is_(None),
    )
    if before is not None:
        query = query.where(ModelVersion.version < before)
    return session.scalars(query.order_by(ModelVersion.version.desc()).limit(limit)).all()


_USED = text(
    """
    SELECT id FROM jobs WHERE project_id = :project_id
      AND status NOT IN ('succeeded', 'failed', 'cancelled')
      AND (resolved #>> '{model,source}' = 'registry'
        AND resolved #>> '{model,name_or_path}' = :name
        AND coalesce(resolved #>> '{model,revision}', :version) IN (:version, 'v' || :version)
        OR resolved #>> '{model,source}' = 'job' AND resolved #>> '{model,name_or_path}' = :job)
    LIMIT 1
    """
)


def mark_deleted(session: Session, project_id: str, name: str, version: int) -> ModelVersion:
    """Take the version out of the registry; its files go with `delete_files` after the commit.

    Marking again is silent, so that a deletion whose files could not be removed can be repeated.
    Raises NotFound, and Conflict while an open job starts from it.
    """
    found = session.scalar(
        select(ModelVersion).where(
            ModelVersion.project_id == project_id,
            ModelVersion.name == name,
            ModelVersion.version == version,
        )
    )
    if found is None:
        raise NotFound(f"there is no version {version} of model {name!r}", "model_not_found")
    arguments = {
        "project_id": project_id,
        "name": name,
        "version": str(version),
        "job": found.job_id,
    }
    user = session.scalar(_USED, arguments)
    if user is not None:
        raise Conflict(
            f"job {user} starts from version {version} of {name!r}: cancel it, or wait for its end",
            "model_in_use",
        )
    session.execute(
        update(ModelVersion)
        .where(ModelVersion.id == found.id)
        .values(deleted_at=func.coalesce(ModelVersion.deleted_at, func.now()))
    )
    kept = Artifact.key.startswith(found.prefix, autoescape=True)
    session.execute(
        delete(Artifact).where(
            Artifact.project_id == project_id, Artifact.job_id == found.job_id, kept
        )
    )
    return found


def delete_files(store: Store, version: ModelVersion) -> None:
    """Delete the pointer first, then the model's files; doing it again is silent."""
    store.delete(pointer_key(version))
    store.delete_prefix(version.prefix)


def mark_pointer_written(session: Session, version_id: str, at: datetime | None = None) -> None:
    """Remember that the version's pointer object stands in the store."""
    session.execute(
        update(ModelVersion)
        .where(ModelVersion.id == version_id)
        .values(pointer_written_at=at or func.now())
    )
