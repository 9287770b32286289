"""Uploads and their blocks in Postgres. A block counts once its row is committed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, insert, or_, select, text, update
from sqlalchemy.orm import Session

from app.datasets.schemas import UploadForm
from app.ids import new_id
from app.models import Upload, UploadBlock

CHECKING_SECONDS = 90.0


@dataclass(frozen=True)
class Block:
    """Bytes of an upload that stand in the store."""

    start: int
    size: int
    key: str


def create(
    session: Session, project_id: str, form: UploadForm, length: int, hours: float
) -> Upload:
    """Write an upload that has no bytes yet."""
    values = {
        "id": new_id("upl"),
        "project_id": project_id,
        "length": length,
        "form": form.model_dump(),
        "expires_at": _in_hours(hours),
    }
    session.execute(insert(Upload).values(values))
    return session.scalars(select(Upload).where(Upload.id == values["id"])).one()


def _in_hours(hours: float) -> Any:
    return func.now() + func.make_interval(0, 0, 0, 0, 0, 0, hours * 3600)


def find(session: Session, project_id: str, upload_id: str) -> Upload | None:
    """Return the project's upload."""
    return session.scalar(
        select(Upload).where(Upload.project_id == project_id, Upload.id == upload_id)
    )


def list_uploads(
    session: Session, project_id: str, statuses: Sequence[str], before: str | None, limit: int
) -> Sequence[Upload]:
    """Return up to `limit` uploads, newest first, older than the id `before`; none that expired."""
    query = select(Upload).where(
        Upload.project_id == project_id,
        Upload.status.in_(statuses),
        or_(Upload.status != "receiving", Upload.expires_at > func.now()),
    )
    if before is not None:
        query = query.where(Upload.id < before)
    return session.scalars(query.order_by(Upload.id.desc()).limit(limit)).all()


def count_open(session: Session, project_id: str) -> int:
    """Return how many uploads of the project are not finished."""
    query = select(func.count()).where(
        Upload.project_id == project_id,
        Upload.status.in_(("receiving", "checking")),
        Upload.expires_at > func.now(),
    )
    return session.scalar(query) or 0


def add_blocks(session: Session, upload: Upload, blocks: list[Block], hours: float) -> bool:
    """Make blocks count that follow each other; False when the upload no longer ends there."""
    start, size = blocks[0].start, sum(block.size for block in blocks)
    moved = session.execute(
        update(Upload)
        .where(
            Upload.id == upload.id,
            Upload.status == "receiving",
            Upload.received == start,
            Upload.expires_at > func.now(),
        )
        .values(received=start + size, expires_at=_in_hours(hours))
        .returning(Upload.id)
    )
    if moved.first() is None:
        return False
    rows = [{**vars(b), "upload_id": upload.id, "project_id": upload.project_id} for b in blocks]
    session.execute(insert(UploadBlock), rows)
    return True


def blocks_of(session: Session, upload_id: str) -> list[Block]:
    """Return the upload's blocks in order."""
    query = (
        select(UploadBlock.start, UploadBlock.size, UploadBlock.key)
        .where(UploadBlock.upload_id == upload_id)
        .order_by(UploadBlock.start)
    )
    return [Block(*row) for row in session.execute(query)]


_CLAIM = text(
    """
    UPDATE uploads SET status = 'checking', checker = :checker,
        checking_until = now() + CAST(:seconds AS float) * interval '1 second'
    WHERE id = :id AND received = length
        AND (status = 'receiving' OR (status = 'checking' AND checking_until < now()))
    RETURNING id
    """
)
_RENEW = text(
    """
    UPDATE uploads SET checking_until = now() + CAST(:seconds AS float) * interval '1 second'
    WHERE id = :id AND status = 'checking' AND checker = :checker RETURNING id
    """
)


def claim_check(session: Session, upload_id: str, checker: str) -> bool:
    """Take a complete upload for looking it through; False when there is nothing to take."""
    values = {"id": upload_id, "checker": checker, "seconds": CHECKING_SECONDS}
    return session.execute(_CLAIM, values).first() is not None


def renew_check(session: Session, upload_id: str, checker: str) -> bool:
    """Keep it; False when someone else has it by now."""
    values = {"id": upload_id, "checker": checker, "seconds": CHECKING_SECONDS}
    return session.execute(_RENEW, values).first() is not None


def end_check(session: Session, upload_id: str, checker: str, status: str, **values: Any) -> bool:
    """Write what became of it; False when someone else has it by now."""
    if status != "receiving":
        values["finished_at"] = func.now()
    ended = session.execute(
        update(Upload)
        .where(Upload.id == upload_id, Upload.status == "checking", Upload.checker == checker)
        .values(status=status, **values)
        .returning(Upload.id)
    )
    return ended.first() is not None


_OVER = text(
    """
    DELETE FROM uploads WHERE id IN (
        SELECT id FROM uploads WHERE (status = 'receiving' AND expires_at < now())
            OR (status = 'checking' AND expires_at < now() AND checking_until < now())
            OR finished_at < now() - CAST(:hours AS float) * interval '1 hour'
        LIMIT 1000 FOR UPDATE SKIP LOCKED)
    RETURNING project_id, id
    """
)


def delete_over(session: Session, hours: float) -> list[tuple[str, str]]:
    """Delete uploads that expired, or were finished so long ago; returns (project, id)."""
    return [(row[0], row[1]) for row in session.execute(_OVER, {"hours": hours})]


def delete(session: Session, upload_id: str) -> None:
    """Delete the upload and its blocks' rows."""
    session.execute(text("DELETE FROM uploads WHERE id = :id"), {"id": upload_id})
