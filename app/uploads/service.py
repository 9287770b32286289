"""Uploads begun, looked at, given up; and how a whole one becomes a data set."""

import logging
import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.datasets import service as datasets
from app.datasets.receive import too_large
from app.datasets.schemas import UploadForm
from app.errors import BadRequest, Conflict, NotFound
from app.models import Upload
from app.problem import Problem
from app.settings import get_settings
from app.storage import Store, StoreUnavailable
from app.uploads import store
from app.uploads.errors import Expired
from app.uploads.schemas import UploadListQuery, UploadOut

_CURSOR = re.compile(r"upl_[0-9A-Z]{26}")
_log = logging.getLogger(__name__)


def begin(session: Session, project_id: str, form: UploadForm, length: int) -> Upload:
    """Begin an upload of so many bytes.

    Raises TooLarge, InvalidPayload for what is said of it, and Conflict above the project's limits.
    """
    settings = get_settings()
    if length > settings.upload_max_bytes:
        raise too_large(settings.upload_max_bytes)
    if length == 0:
        raise BadRequest("an empty file is no data set: Upload-Length must be 1 or more", "empty")
    datasets.check_file_name(form.file_name)
    datasets.check_count(session, project_id)
    if store.count_open(session, project_id) >= settings.uploads_open:
        raise Conflict(
            f"{settings.uploads_open} uploads of this project are not finished "
            "(POLAR_UPLOADS_OPEN): finish or delete some",
            "too_many_uploads",
        )
    return store.create(session, project_id, form, length, settings.upload_hours)


def find(session: Session, project_id: str, upload_id: str) -> Upload:
    """Return the upload; raises NotFound, and Expired."""
    found = store.find(session, project_id, upload_id)
    if found is None:
        raise NotFound(f"there is no upload {upload_id}: begin another one", "upload_not_found")
    if found.status == "receiving" and found.expired:
        raise Expired(upload_id)
    return found


def list_uploads(session: Session, project_id: str, query: UploadListQuery) -> Sequence[Upload]:
    """Return a page, newest first; raises BadRequest for a cursor that is none."""
    if query.cursor is not None and not _CURSOR.fullmatch(query.cursor):
        raise BadRequest(
            f"cursor {query.cursor[:60]!r} is not from a page of this list", "invalid_cursor"
        )
    return store.list_uploads(session, project_id, query.status, query.cursor, query.limit)


def form_of(upload: Upload) -> UploadForm:
    """Return what was said of the upload when it was begun."""
    return UploadForm.model_validate(upload.form)


def prefix_of(upload: Upload) -> str:
    """Return where its blocks lie in the store."""
    return f"{upload.project_id}/uploads/{upload.id}/"


def needs_check(upload: Upload) -> bool:
    """Say whether all bytes are here and nobody may be looking through them."""
    if upload.received != upload.length:
        return False
    return upload.status == "receiving" or (upload.status == "checking" and upload.unattended)


def delete_blocks(objects: Store, upload: Upload) -> None:
    """Delete the objects of an upload that is over; what cannot go now is left to housekeeping."""
    try:
        objects.delete_prefix(prefix_of(upload))
    except StoreUnavailable as error:
        _log.warning("blocks of %s stay for housekeeping: %s", upload.id, error)


def show(upload: Upload) -> UploadOut:
    """Return an upload as it looks from outside."""
    here = f"/uploads/{upload.id}"
    links = {"self": here}
    if upload.dataset_id:
        links["dataset"] = f"/datasets/{upload.dataset_id}"
    document: dict[str, Any] | None = upload.problem
    return UploadOut(
        id=upload.id,
        status=upload.status,
        name=upload.form["name"],
        file_name=upload.form["file_name"],
        length=upload.length,
        offset=upload.received,
        dataset_id=upload.dataset_id,
        problem=Problem.model_validate(document) if document else None,
        created_at=upload.created_at,
        expires_at=upload.expires_at,
        links=links,
    )
