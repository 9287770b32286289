"""`/models`: what finished jobs have published, version by version."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from app.artifacts.files import send_archive, send_file
from app.artifacts.routes import ARCHIVE, DOWNLOAD, FilePath, Redirect
from app.auth import Caller, Role, require
from app.db import transaction
from app.http import Answers
from app.registry import files, service, view
from app.registry.schemas import ModelOut, ModelPage, PageQuery, VersionDetail, VersionPage
from app.storage import get_store
from app.store_threads import waits_for_store

router = APIRouter(prefix="/models", tags=["models"])

_ABSENT: Answers = {404: {"description": "No such model or version"}}
_IN_USE: Answers = {409: {"description": "An open job starts from it"}}
Name = Annotated[
    str,
    Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", description="Name of the model."),
]
Version = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of the version.")]


@router.get("", summary="List models")
def list_models(
    query: Annotated[PageQuery, Query()], caller: Caller = require(Role.VIEWER)
) -> ModelPage:
    """Return models by name, each with its newest version."""
    bucket = get_store().bucket
    with transaction() as session:
        found = service.list_models(session, caller.project_id, query.cursor, query.limit)
    items = [
        ModelOut(name=m.name, versions=m.versions, newest=view.of_version(m.newest, bucket))
        for m in found
    ]
    full = len(items) == query.limit
    return ModelPage(items=items, next_cursor=items[-1].name if full else None)


@router.get("/{name}/versions", summary="List a model's versions", responses=_ABSENT)
def list_versions(
    name: Name, query: Annotated[PageQuery, Query()], caller: Caller = require(Role.VIEWER)
) -> VersionPage:
    """Return the model's versions, newest first."""
    bucket = get_store().bucket
    before = service.parse_version(query.cursor) if query.cursor else None
    with transaction() as session:
        found = service.list_versions(session, caller.project_id, name, before, query.limit)
    items = [view.of_version(version, bucket) for version in found]
    full = len(items) == query.limit
    return VersionPage(items=items, next_cursor=str(items[-1].version) if full else None)


@router.get("/{name}/versions/{version}", summary="Look at a version", responses=_ABSENT)
@waits_for_store
def get_version(
    name: Name, version: Version, caller: Caller = require(Role.VIEWER)
) -> VersionDetail:
    """Return a version with its files, as its committed manifest names them."""
    store = get_store()
    with transaction() as session:
        found = service.find_version(session, caller.project_id, name, version)
    return view.of_detail(found, store.bucket, files.version_files(store, found))


@router.get(
    "/{name}/versions/{version}/files.tar",
    summary="Download a version",
    response_class=Response,
    responses=ARCHIVE,
)
@waits_for_store
def download_version(
    name: Name, version: Version, caller: Caller = require(Role.VIEWER)
) -> Response:
    """Stream all files of a version as one tar file, its manifest last."""
    store = get_store()
    with transaction() as session:
        found = service.find_version(session, caller.project_id, name, version)
    return send_archive(store, files.stored_files(store, found), f"{name}-v{version}.tar")


@router.head("/{name}/versions/{version}/files/{path:path}", include_in_schema=False)
@router.get(
    "/{name}/versions/{version}/files/{path:path}",
    summary="Download a file of a version",
    response_class=Response,
    responses=DOWNLOAD,
)
@waits_for_store
def download_file(
    request: Request,
    name: Name,
    version: Version,
    path: FilePath,
    redirect: Redirect = False,  # noqa: FBT002 - a query parameter
    caller: Caller = require(Role.VIEWER),
) -> Response:
    """Stream a file; ranges, `If-(None-)Match`, `If-Range`, HEAD; its ETag is its sha256."""
    store = get_store()
    with transaction() as session:
        found = service.find_version(session, caller.project_id, name, version)
    return send_file(request, store, files.find_file(store, found, path), redirect=redirect)


@router.delete(
    "/{name}/versions/{version}",
    status_code=204,
    summary="Delete a version",
    responses={**_ABSENT, **_IN_USE},
)
@waits_for_store
def delete_version(name: Name, version: Version, caller: Caller = require(Role.SUBMITTER)) -> None:
    """Take a version out of the registry and delete its files; its number is never used again.

    Deleting again is silent and removes files that could not be removed before.
    """
    with transaction() as session:
        found = service.mark_deleted(session, caller.project_id, name, version)
    service.delete_files(get_store(), found)
