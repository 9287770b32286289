"""Files: uploaded data sets, and the metrics of finished jobs."""

import re
from datetime import datetime

from sqlalchemy.orm import Session
from starlette.responses import Response

from app.artifacts.files import StoredFile
from app.datasets import service
from app.datasets.receive import Received
from app.datasets.schemas import UploadForm
from app.db import transaction
from app.errors import BadRequest, FieldProblem, InvalidPayload
from app.models import Dataset
from app.openai import ids, metrics, store
from app.openai.request import FileQuery
from app.openai.schemas import FileDeleted, FileObject, FilePage, ends, seconds
from app.series import service as series
from app.storage import Store, content_disposition

FIELDS = ("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")
"""Of the form that a file comes in."""
_PURPOSE, _RESULTS = "fine-tune", "fine-tune-results"
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def form_of(received: Received) -> UploadForm:
    """Return what a data set is told of by the form of a file; raises InvalidPayload."""
    fields = received.fields
    if not received.file_name:
        raise _wrong("/file", "send the file in a form, as multipart/form-data")
    if fields.get("purpose") != _PURPOSE:
        given = fields.get("purpose")
        said = "it is missing" if given is None else f"there is no use for {given[:60]!r} here"
        raise _wrong("/purpose", f"{said}: send `{_PURPOSE}`")
    if expiry := next((name for name in fields if name.startswith("expires_after")), None):
        message = "files are kept here until they are deleted: leave it out"
        raise _wrong(f"/{expiry}", message)
    if len(received.file_name) > _LONGEST_NAME:
        raise _wrong("/file", f"its name has more than {_LONGEST_NAME} characters: shorten it")
    try:
        service.check_file_name(received.file_name)
    except InvalidPayload as error:
        raise _wrong("/file", error.problems[0].message) from error
    return UploadForm(name=_name(received.file_name), file_name=received.file_name)


_LONGEST_NAME = 255


def _name(file_name: str) -> str:
    """The data set's name: the file's without its ending, in letters that names have."""
    stem = file_name.rpartition("/")[2].partition(".")[0]
    return _ODD.sub("-", stem).strip("-._")[:128] or "file"


def of_dataset(dataset: Dataset) -> FileObject:
    """Return an uploaded data set as a file."""
    return FileObject(
        id=ids.file_id(dataset.id),
        bytes=dataset.size or 0,
        created_at=seconds(dataset.created_at),
        filename=dataset.file_name or dataset.name,
        purpose=_PURPOSE,
        status_details=dataset.problems[0]["message"] if dataset.problems else None,
    )


def find(session: Session, project_id: str, given: str, *, deleted: bool = False) -> Dataset:
    """Return the uploaded data set of a file's id, or one that was `deleted`; raises NotFound."""
    dataset_id = ids.dataset_of(given)
    found = dataset_id and store.get_file(session, project_id, dataset_id, deleted=deleted)
    if not found:
        raise ids.no_file(given)
    return found


def show(project_id: str, given: str) -> FileObject:
    """Return a file; raises NotFound."""
    if (job_id := ids.job_of_results(given)) is not None:
        finished, content = results(project_id, job_id)
        return FileObject(
            id=given,
            bytes=len(content),
            created_at=seconds(finished),
            filename=_RESULTS_NAME,
            purpose=_RESULTS,
        )
    with transaction() as session:
        return of_dataset(find(session, project_id, given))


_RESULTS_NAME = "step_metrics.csv"


def results(project_id: str, job_id: str) -> tuple[datetime, bytes]:
    """Return when a job ended and the CSV of its metrics; raises NotFound."""
    with transaction() as session:
        finished = store.succeeded_at(session, project_id, job_id)
    if finished is None:
        raise ids.no_file(ids.results_id(job_id))
    return finished, metrics.as_csv(metrics.steps_of(series.find(project_id, job_id)))


def send_results(project_id: str, job_id: str) -> Response:
    """Answer with the CSV of a job's metrics; raises NotFound."""
    _, content = results(project_id, job_id)
    headers = {"Content-Disposition": content_disposition(_RESULTS_NAME)}
    return Response(content, headers=headers, media_type="text/csv")


def stored(dataset: Dataset) -> StoredFile:
    """Return where the bytes of an uploaded data set lie."""
    return StoredFile(
        path=dataset.file_name or dataset.name,
        key=dataset.location,
        size=dataset.size or 0,
        sha256=dataset.sha256 or "",
        created_at=dataset.created_at,
    )


def list_files(session: Session, project_id: str, query: FileQuery) -> FilePage:
    """Return a page of uploaded files; raises InvalidPayload."""
    if query.purpose == _RESULTS:
        message = "files of metrics are not listed: each is named in its job's `result_files`"
        raise _wrong("", f"query `purpose`: {message}")
    if query.purpose not in (None, _PURPOSE):
        return FilePage(data=[], has_more=False, **ends([]))
    after = None if query.after is None else ids.dataset_after(query.after)
    newest_first = query.order == "desc"
    rows = store.list_files(session, project_id, after, query.limit + 1, newest_first=newest_first)
    data = [of_dataset(row) for row in rows[: query.limit]]
    return FilePage(data=data, has_more=len(rows) > query.limit, **ends(data))


def delete(files: Store, project_id: str, given: str) -> FileDeleted:
    """Delete an uploaded file, as `DELETE /datasets/{id}` does; deleting it again is silent.

    Raises NotFound, Conflict while an open job reads it, and BadRequest for a job's metrics.
    """
    if ids.job_of_results(given) is not None:
        raise BadRequest("the metrics of a job are deleted with the job", "unsupported_value")
    with transaction() as session:
        file = find(session, project_id, given, deleted=True)
        found = service.mark_deleted(session, project_id, file.id)
    service.delete_files(files, found)
    return FileDeleted(id=ids.file_id(found.id))


def _wrong(pointer: str, message: str) -> InvalidPayload:
    return InvalidPayload([FieldProblem(pointer=pointer, message=message)], "unsupported_value")
