"""`/v1/files`: data sets as OpenAI's clients upload, list, read and delete them."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from app.artifacts.files import send_file
from app.artifacts.routes import DOWNLOAD
from app.auth import Caller, Role, require
from app.datasets.taking import take_upload
from app.db import transaction
from app.http import Answers
from app.openai import examples, files, ids
from app.openai.request import FileQuery
from app.openai.schemas import FileDeleted, FileObject, FilePage
from app.storage import get_store
from app.store_threads import waits_for_store

router = APIRouter(prefix="/v1/files", tags=["openai"])

_ABSENT: Answers = {404: {"description": "No such file"}}
FileId = Annotated[str, Path(max_length=100, description="Id of the file.")]
_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "With its file name."},
        "purpose": {"type": "string", "enum": ["fine-tune"]},
    },
}
_BODY: dict[str, Any] = {
    "required": True,
    "content": {"multipart/form-data": {"schema": _FORM, "examples": {"form": examples.FILE}}},
}


@router.post("", summary="Upload a file", openapi_extra={"requestBody": _BODY})
async def upload_file(request: Request, caller: Caller = require(Role.SUBMITTER)) -> FileObject:
    """Upload rows for fine-tuning. The file is a data set, and is seen at `/datasets` too.

    It is read whole before it is taken: a broken line refuses it, and nothing of it stays.
    """
    made = await take_upload(request, caller.project_id, files.form_of, files.FIELDS)
    return files.of_dataset(made)


@router.get("", summary="List files")
def list_files(
    query: Annotated[FileQuery, Query()], caller: Caller = require(Role.VIEWER)
) -> FilePage:
    """Return uploaded files, however they were uploaded."""
    with transaction() as session:
        return files.list_files(session, caller.project_id, query)


@router.get("/{file_id}", summary="Look at a file", responses=_ABSENT)
@waits_for_store
def get_file(file_id: FileId, caller: Caller = require(Role.VIEWER)) -> FileObject:
    """Return a file, or that with a job's metrics."""
    return files.show(caller.project_id, file_id)


@router.head("/{file_id}/content", include_in_schema=False)
@router.get(
    "/{file_id}/content",
    summary="Download a file",
    response_class=Response,
    responses={
        **{status: answer for status, answer in DOWNLOAD.items() if status != 307},
        200: {
            "description": "The bytes as they were uploaded, or a job's metrics as CSV",
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                "text/csv": {"schema": {"type": "string"}},
            },
        },
        **_ABSENT,
    },
)
@waits_for_store
def download(request: Request, file_id: FileId, caller: Caller = require(Role.VIEWER)) -> Response:
    """Stream a file's bytes; ranges and conditions as for every download."""
    if (job_id := ids.job_of_results(file_id)) is not None:
        return files.send_results(caller.project_id, job_id)
    with transaction() as session:
        found = files.stored(files.find(session, caller.project_id, file_id))
    return send_file(request, get_store(), found, redirect=False)


@router.delete("/{file_id}", summary="Delete a file", responses=_ABSENT)
@waits_for_store
def delete_file(file_id: FileId, caller: Caller = require(Role.SUBMITTER)) -> FileDeleted:
    """Delete a file that no open job reads."""
    return files.delete(get_store(), caller.project_id, file_id)
