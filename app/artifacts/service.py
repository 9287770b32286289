"""Checkpoints and artifacts of a job, as the database knows them."""

from collections.abc import Sequence
from urllib.parse import quote

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.artifacts.files import StoredFile
from app.artifacts.schemas import ArtifactList, ArtifactOut, CheckpointList, CheckpointOut
from app.errors import NotFound
from app.events.service import require_job
from app.models import Artifact, Attempt, CheckpointRow
from app.storage import join_key


def list_checkpoints(session: Session, project_id: str, job_id: str, bucket: str) -> CheckpointList:
    """Return the job's whole checkpoints, the one to resume from first; raises NotFound."""
    require_job(session, project_id, job_id)
    query = (
        select(CheckpointRow, Attempt.number)
        .join(Attempt, Attempt.id == CheckpointRow.attempt_id)
        .where(
            CheckpointRow.project_id == project_id,
            CheckpointRow.job_id == job_id,
            CheckpointRow.deleted_at.is_(None),
        )
        .order_by(Attempt.number.desc(), CheckpointRow.step.desc())
    )
    items = [
        CheckpointOut(
            id=row.id,
            step=row.step,
            attempt_id=row.attempt_id,
            attempt=number,
            size=row.size,
            sha256=row.manifest_sha256,
            location=f"s3://{bucket}/{row.prefix}",
            created_at=row.created_at,
        )
        for row, number in session.execute(query)
    ]
    return CheckpointList(items=items)


def list_artifacts(session: Session, project_id: str, job_id: str) -> ArtifactList:
    """Return the job's files by path; raises NotFound."""
    require_job(session, project_id, job_id)
    items = [
        ArtifactOut(
            path=row.path,
            kind=row.kind,
            size=row.size,
            sha256=row.sha256,
            attempt_id=row.attempt_id,
            url=f"/jobs/{job_id}/artifacts/{quote(row.path)}",
            created_at=row.created_at,
        )
        for row in _rows(session, project_id, job_id)
    ]
    return ArtifactList(items=items, archive=f"/jobs/{job_id}/artifacts.tar")


def find_artifact(session: Session, project_id: str, job_id: str, path: str) -> StoredFile:
    """Return the file; raises InvalidKey for a path that climbs out, and NotFound."""
    join_key(path)
    require_job(session, project_id, job_id)
    query = select(Artifact).where(
        Artifact.project_id == project_id, Artifact.job_id == job_id, Artifact.path == path
    )
    row = session.scalar(query)
    if row is None:
        raise NotFound(
            f"job {job_id} keeps no file {path!r}; GET /jobs/{job_id}/artifacts lists them",
            "artifact_not_found",
        )
    return _stored(row)


def all_artifacts(
    session: Session, project_id: str, job_id: str, kind: str | None
) -> list[StoredFile]:
    """Return the job's files of a kind (None: all); raises NotFound when there is none."""
    require_job(session, project_id, job_id)
    rows = _rows(session, project_id, job_id)
    found = [_stored(row) for row in rows if kind is None or row.kind == kind]
    if not found:
        what = f"no {kind} files" if kind else "no files"
        raise NotFound(f"job {job_id} keeps {what} (yet)", "artifact_not_found")
    return found


def _rows(session: Session, project_id: str, job_id: str) -> Sequence[Artifact]:
    query = select(Artifact).where(Artifact.project_id == project_id, Artifact.job_id == job_id)
    return session.scalars(query.order_by(Artifact.path)).all()


def _stored(row: Artifact) -> StoredFile:
    return StoredFile(row.path, row.key, row.size, row.sha256, row.created_at)
