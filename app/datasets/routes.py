"""`/datasets`: upload or register data, look at them, delete them."""

import json
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ValidationError

from app.auth import Caller, Role, require
from app.datasets import service
from app.datasets.preview import preview
from app.datasets.receive import Received
from app.datasets.schemas import (
    NAME_HELP,
    DatasetOut,
    DatasetPage,
    DatasetQuery,
    Preview,
    RegisterDataset,
    UploadForm,
    UploadQuery,
)
from app.datasets.taking import take_upload
from app.datasets.temporary import temporary_folder
from app.db import transaction
from app.errors import BadRequest, InvalidPayload
from app.http import ULID, Answers, body_problems
from app.models import Dataset
from app.settings import get_settings
from app.storage import get_store
from app.store_threads import waits_for_store

router = APIRouter(prefix="/datasets", tags=["datasets"])

DatasetId = Annotated[str, Path(pattern=f"^ds_{ULID}$", description="Id of the data set.")]
_ABSENT: Answers = {404: {"description": "No such data set"}}
_IN_USE: Answers = {409: {"description": "An open job reads it"}}
_ROWS = '{"instruction": "Can I return this?", "output": "Yes, within 14 days."}\n'
_FORM = {
    "type": "object",
    "required": ["file", "name"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "With its file name."},
        "name": {"type": "string", "description": NAME_HELP},
        "sha256": {"type": "string", "description": "Refuse the upload if it is another."},
    },
}
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": _FORM,
            "examples": {"form": {"value": {"name": "shop-dialogues", "file": _ROWS}}},
        },
        "application/octet-stream": {
            "schema": {"type": "string", "format": "binary"},
            "examples": {"raw": {"value": _ROWS}},
        },
        "application/json": {
            "schema": RegisterDataset.model_json_schema(),
            "examples": {
                "hub": {"value": {"name": "shop", "source": "hub", "location": "org/shop"}},
                "s3": {
                    "value": {"name": "shop", "source": "s3", "location": "s3://data/shop.jsonl"}
                },
            },
        },
    },
}
_UPLOADED: Answers = {
    400: {"description": "A malformed form or JSON, or an upload that broke off"},
    413: {"description": "Larger than the service takes"},
    422: {"description": "Data that cannot be read: `errors` names the lines"},
}


@router.post(
    "",
    status_code=201,
    summary="Upload or register a data set",
    response_model=DatasetOut,
    responses=_UPLOADED,
    openapi_extra={"requestBody": _BODY},
)
async def create_dataset(
    request: Request,
    response: Response,
    query: Annotated[UploadQuery, Query()],
    caller: Caller = require(Role.SUBMITTER),
) -> DatasetOut:
    """Upload a JSONL, JSON, CSV or Parquet file, as a form or as it is, or register a place.

    A form has the fields `file` and `name`; a file sent as it is has `?name=&file_name=`; JSON
    registers a hub repository or an `s3://` address. The file is read whole before it is taken:
    a broken line refuses it, and nothing of it stays.
    """
    if _media_type(request) == "application/json":
        new = _registration(await request.body())
        made = await to_thread.run_sync(_register, caller.project_id, new)
    else:
        made = await _upload(request, query, caller.project_id)
    response.headers["Location"] = f"/datasets/{made.id}"
    return service.show(made, get_store().bucket)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _registration(body: bytes) -> RegisterDataset:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise BadRequest(f"the body is not JSON: {why}", "malformed_json") from error
    if problems := body_problems(RegisterDataset, data):
        raise InvalidPayload(problems)
    return RegisterDataset.model_validate(data)


def _register(project_id: str, new: RegisterDataset) -> Dataset:
    with transaction() as session:
        return service.register(session, project_id, new, get_store().bucket)


async def _upload(request: Request, query: UploadQuery, project_id: str) -> Dataset:
    def form_of(received: Received) -> UploadForm:
        fields = received.fields
        return _checked(
            {
                "name": fields.get("name") or query.name,
                "file_name": received.file_name or query.file_name,
                "sha256": fields.get("sha256") or query.sha256,
            }
        )

    return await take_upload(request, project_id, form_of)


def _checked(fields: dict[str, str | None]) -> UploadForm:
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return UploadForm.model_validate(given)
    except ValidationError as error:
        problems = body_problems(UploadForm, given)
        raise InvalidPayload(problems) from error


@router.get("", summary="List data sets")
def list_datasets(
    query: Annotated[DatasetQuery, Query()], caller: Caller = require(Role.VIEWER)
) -> DatasetPage:
    """Return data sets, newest first; `name` lists the versions of one."""
    bucket = get_store().bucket
    with transaction() as session:
        found = service.list_datasets(
            session, caller.project_id, query.name, query.cursor, query.limit
        )
    items = [service.show(dataset, bucket) for dataset in found]
    return DatasetPage(items=items, next_cursor=items[-1].id if len(items) == query.limit else None)


@router.get("/{dataset_id}", summary="Look at a data set", responses=_ABSENT)
def get_dataset(dataset_id: DatasetId, caller: Caller = require(Role.VIEWER)) -> DatasetOut:
    """Return format, columns, rows and problems of a data set."""
    with transaction() as session:
        found = service.find(session, caller.project_id, dataset_id)
    return service.show(found, get_store().bucket)


@router.get("/{dataset_id}/preview", summary="See the first rows", responses=_ABSENT)
async def preview_dataset(
    dataset_id: DatasetId,
    limit: Annotated[int, Query(ge=1, le=100, description="Rows.")] = 10,
    caller: Caller = require(Role.VIEWER),
) -> Preview:
    """Return the first rows of an upload as they are in its file; long values are cut."""
    found = await to_thread.run_sync(_find, caller.project_id, dataset_id)
    with temporary_folder(get_settings().home) as folder:
        return await preview(get_store(), found, limit, folder)


def _find(project_id: str, dataset_id: str) -> Dataset:
    with transaction() as session:
        return service.find(session, project_id, dataset_id)


@router.delete(
    "/{dataset_id}",
    status_code=204,
    summary="Delete a data set",
    responses={**_ABSENT, **_IN_USE},
)
@waits_for_store
def delete_dataset(dataset_id: DatasetId, caller: Caller = require(Role.SUBMITTER)) -> None:
    """Delete a version and its file; its number is never used again.

    Deleting again is silent and removes a file that could not be removed before.
    """
    with transaction() as session:
        found = service.mark_deleted(session, caller.project_id, dataset_id)
    service.delete_files(get_store(), found)
