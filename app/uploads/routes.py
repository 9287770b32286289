"""`/uploads`: data sets in pieces, by tus 1.0; any of its clients works, and so does curl."""

import binascii
from base64 import b64decode
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, BackgroundTasks, Depends, Header, Path, Query, Request, Response
from pydantic import ValidationError

from app.auth import Caller, Role, require
from app.datasets.schemas import UploadForm
from app.db import transaction
from app.errors import BadRequest, Conflict, FieldProblem, InvalidPayload
from app.http import ULID, Answers, body_problems
from app.models import Upload
from app.settings import get_settings
from app.storage import get_store
from app.store_threads import waits_for_store
from app.uploads import service, store
from app.uploads.checking import check, check_quietly
from app.uploads.errors import OffsetMismatch, WrongMediaType, WrongVersion
from app.uploads.receiving import ALGORITHMS, Checksum, receive
from app.uploads.schemas import UploadListQuery, UploadOut, UploadPage

VERSION = "1.0.0"
MEDIA_TYPE = "application/offset+octet-stream"
EXTENSIONS = "creation,checksum,expiration,termination"
_NAMES = {"name": "name", "filename": "file_name", "file_name": "file_name", "sha256": "sha256"}
_ROWS = '{"instruction": "Can I return this?", "output": "Yes, within 14 days."}\n'
UploadId = Annotated[str, Path(pattern=f"^upl_{ULID}$", description="Id of the upload.")]
Length = Annotated[
    int,
    Header(
        alias="Upload-Length", ge=0, le=2**62, description="Bytes of the whole file.", examples=[72]
    ),
]
Metadata = Annotated[
    str,
    Header(
        alias="Upload-Metadata",
        max_length=4096,
        description="Pairs `key base64` with commas between: `name`, `filename`, and `sha256` of "
        "the whole file in hexadecimal, if it is to be checked. Others are left out.",
        examples=["name c2hvcA==,filename c2hvcC5qc29ubA=="],
    ),
]
Offset = Annotated[
    int,
    Header(
        alias="Upload-Offset", ge=0, le=2**62, description="Where these bytes begin.", examples=[0]
    ),
]
Sum = Annotated[
    str | None,
    Header(
        alias="Upload-Checksum",
        max_length=200,
        description="`sha256 <base64>` or `sha1 <base64>` of this body: bytes that differ are "
        "dropped.",
    ),
]
_ABSENT: Answers = {
    404: {"description": "No such upload"},
    410: {"description": "It was not finished in time"},
    412: {"description": "Another version of tus"},
}
_BEGUN: Answers = {
    409: {"description": "Too many unfinished uploads or data sets"},
    413: {"description": "Larger than the service takes"},
    412: {"description": "Another version of tus"},
}
_TAKEN: Answers = {
    204: {"description": "Taken; `Upload-Offset` says how much is here"},
    409: {"description": "The bytes do not begin where the upload ends"},
    413: {"description": "More bytes than were announced"},
    415: {"description": f"Not {MEDIA_TYPE}"},
    422: {"description": "All is here, and cannot be read: `errors` names the lines"},
    460: {"description": "Not the bytes of `Upload-Checksum`"},
    **_ABSENT,
}
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        MEDIA_TYPE: {
            "schema": {"type": "string", "format": "binary"},
            "examples": {"piece": {"value": _ROWS}},
        }
    },
}


def _speak(request: Request) -> None:
    """Refuse other versions of tus; who does not know tus need not say which."""
    if (version := request.headers.get("tus-resumable", VERSION)) != VERSION:
        raise WrongVersion(version[:20])


router = APIRouter(prefix="/uploads", tags=["datasets"], dependencies=[Depends(_speak)])


def _say(response: Response, upload: Upload) -> None:
    """Say in headers where the upload stands."""
    response.headers["Tus-Resumable"] = VERSION
    response.headers["Upload-Offset"] = str(upload.received)
    response.headers["Upload-Length"] = str(upload.length)
    if upload.status == "receiving":
        expires = upload.expires_at.strftime("%a, %d %b %Y %H:%M:%S GMT")
        response.headers["Upload-Expires"] = expires
    if upload.dataset_id:
        response.headers["Content-Location"] = f"/datasets/{upload.dataset_id}"


@router.options("", include_in_schema=False, status_code=204)
@router.options("/{upload_id}", include_in_schema=False, status_code=204)
async def describe(response: Response, _: Caller = require(Role.VIEWER)) -> None:
    """Say which parts of tus are spoken here."""
    response.headers["Tus-Resumable"] = response.headers["Tus-Version"] = VERSION
    response.headers["Tus-Extension"] = EXTENSIONS
    response.headers["Tus-Max-Size"] = str(get_settings().upload_max_bytes)
    response.headers["Tus-Checksum-Algorithm"] = ",".join(ALGORITHMS)


@router.post("", status_code=201, summary="Begin an upload in pieces", responses=_BEGUN)
def begin_upload(
    response: Response,
    length: Length,
    metadata: Metadata,
    caller: Caller = require(Role.SUBMITTER),
) -> UploadOut:
    """Begin an upload of a data set; its bytes follow by PATCH, with any client of tus 1.0.

    What has arrived survives connections and processes that end, for a day after the last byte.
    """
    form = _form(metadata)
    with transaction() as session:
        made = service.begin(session, caller.project_id, form, length)
    response.headers["Location"] = f"/uploads/{made.id}"
    _say(response, made)
    return service.show(made)


@router.get("", summary="List uploads")
def list_uploads(
    query: Annotated[UploadListQuery, Query()], caller: Caller = require(Role.SUBMITTER)
) -> UploadPage:
    """Return the project's uploads, newest first: those that are not finished, or `status`.

    One that was not finished in time is gone, and one that is finished is forgotten later.
    """
    with transaction() as session:
        found = service.list_uploads(session, caller.project_id, query)
    items = [service.show(upload) for upload in found]
    return UploadPage(items=items, next_cursor=items[-1].id if len(items) == query.limit else None)


def _form(metadata: str) -> UploadForm:
    given: dict[str, str] = {}
    for pair in metadata.split(","):
        key, _, value = pair.strip().partition(" ")
        if key in _NAMES:
            given[_NAMES[key]] = _decoded(key, value)
    try:
        return UploadForm.model_validate(given)
    except ValidationError as error:
        raise InvalidPayload(body_problems(UploadForm, given)) from error


def _decoded(key: str, value: str) -> str:
    try:
        return b64decode(value, validate=True).decode()
    except ValueError as error:
        message = f"Upload-Metadata: the value of {key!r} must be base64 of UTF-8"
        raise InvalidPayload([FieldProblem(pointer=f"/{_NAMES[key]}", message=message)]) from error


@router.head("/{upload_id}", include_in_schema=False)
@router.get("/{upload_id}", summary="See where an upload stands", responses=_ABSENT)
def get_upload(
    response: Response,
    upload_id: UploadId,
    background: BackgroundTasks,
    caller: Caller = require(Role.SUBMITTER),
) -> UploadOut:
    """Return the upload; HEAD says the same in headers: `Upload-Offset` is where to go on.

    `status` is `checking` while a whole one is looked through, then `done` with its data set, or
    `refused` with the reason. A check that broke off is taken up by this call.
    """
    with transaction() as session:
        found = service.find(session, caller.project_id, upload_id)
    if service.needs_check(found):
        background.add_task(check_quietly, get_store(), found)
    _say(response, found)
    return service.show(found)


@router.patch(
    "/{upload_id}",
    status_code=204,
    summary="Send a piece of an upload",
    responses=_TAKEN,
    openapi_extra={"requestBody": _BODY},
)
async def send_piece(
    request: Request,
    response: Response,
    upload_id: UploadId,
    offset: Offset,
    checksum: Sum = None,
    caller: Caller = require(Role.SUBMITTER),
) -> None:
    """Send bytes from `Upload-Offset` on, as many as you like.

    The piece that completes the file is answered when the file has been looked through:
    `Content-Location` is the data set then. Without an answer, GET says what became of it.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != MEDIA_TYPE:
        raise WrongMediaType(media_type)
    wanted = _checksum(checksum)
    found = await to_thread.run_sync(_found, caller.project_id, upload_id)
    if found.received != offset or found.status == "refused":
        raise OffsetMismatch(offset, found.received)
    if found.received < found.length:
        await receive(request, get_store(), found, wanted)
        found = await to_thread.run_sync(_found, caller.project_id, upload_id)
    if service.needs_check(found):
        await check(get_store(), found)
        found = await to_thread.run_sync(_found, caller.project_id, upload_id)
    _say(response, found)


def _found(project_id: str, upload_id: str) -> Upload:
    with transaction() as session:
        return service.find(session, project_id, upload_id)


def _checksum(field: str | None) -> Checksum | None:
    if field is None:
        return None
    algorithm, _, value = field.partition(" ")
    try:
        digest = b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest("Upload-Checksum: the value must be base64", "invalid_checksum") from error
    if algorithm not in ALGORITHMS:
        message = f"Upload-Checksum: {algorithm[:20]!r} is none of {', '.join(ALGORITHMS)}"
        raise BadRequest(message, "invalid_checksum")
    return Checksum(algorithm, digest)


@router.delete(
    "/{upload_id}",
    status_code=204,
    summary="Give an upload up",
    responses={**_ABSENT, 409: {"description": "It is being looked through"}},
)
@waits_for_store
def delete_upload(
    response: Response, upload_id: UploadId, caller: Caller = require(Role.SUBMITTER)
) -> None:
    """Forget an upload and what has arrived of it; a data set that it became stays."""
    with transaction() as session:
        found = service.find(session, caller.project_id, upload_id)
        if found.status == "checking" and not service.needs_check(found):
            raise Conflict("the upload is being looked through; try again soon", "upload_checking")
        store.delete(session, found.id)
    service.delete_blocks(get_store(), found)
    response.headers["Tus-Resumable"] = VERSION
