"""`/jobs/{id}/checkpoints` and `/jobs/{id}/artifacts`: what a job keeps, and its downloads."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParameter

from app.artifacts import service
from app.artifacts.files import send_archive, send_file
from app.artifacts.schemas import ArtifactList, CheckpointList
from app.auth import Caller, Role, require
from app.db import transaction
from app.http import Answers, JobId
from app.storage import get_store
from app.store_threads import waits_for_store

router = APIRouter(prefix="/jobs/{job_id}", tags=["artifacts"])

_ABSENT: Answers = {404: {"description": "No such job"}}
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
DOWNLOAD: Answers = {
    200: {"description": "The file", "content": {"application/octet-stream": _BINARY}},
    206: {"description": "A part of it", "content": {"application/octet-stream": _BINARY}},
    304: {"description": "The file is the one named by If-None-Match"},
    307: {"description": "A link to the store, valid for 15 minutes"},
    404: {"description": "No such job or file"},
    412: {"description": "The file is not the one named by If-Match"},
    416: {"description": "The range begins behind the end"},
}
ARCHIVE: Answers = {
    200: {"description": "A tar file", "content": {"application/x-tar": _BINARY}},
    404: {"description": "No such job, or nothing to download"},
}
FilePath = Annotated[
    str,
    PathParameter(max_length=1024, description="Path of the file.", examples=["model/config.json"]),
]
Redirect = Annotated[
    bool,
    Query(description="Get a link to the store instead, where it has a public address."),
]


@router.get("/checkpoints", summary="List checkpoints", responses=_ABSENT)
def list_checkpoints(job_id: JobId, caller: Caller = require(Role.VIEWER)) -> CheckpointList:
    """Return the job's whole checkpoints, the one to resume from first."""
    with transaction() as session:
        bucket = get_store().bucket
        return service.list_checkpoints(session, caller.project_id, job_id, bucket)


@router.get("/artifacts", summary="List artifacts", responses=_ABSENT)
def list_artifacts(job_id: JobId, caller: Caller = require(Role.VIEWER)) -> ArtifactList:
    """Return the files that the job keeps, with size and sha256."""
    with transaction() as session:
        return service.list_artifacts(session, caller.project_id, job_id)


@router.get(
    "/artifacts.tar", summary="Download all artifacts", response_class=Response, responses=ARCHIVE
)
@waits_for_store
def download_archive(
    job_id: JobId,
    kind: Annotated[
        str | None, Query(max_length=64, description="Only this kind.", examples=["model"])
    ] = None,
    caller: Caller = require(Role.VIEWER),
) -> Response:
    """Stream the job's files, or those of one kind, as one tar file."""
    with transaction() as session:
        files = service.all_artifacts(session, caller.project_id, job_id, kind)
    return send_archive(get_store(), files, f"{job_id}.tar")


@router.head("/artifacts/{path:path}", include_in_schema=False)
@router.get(
    "/artifacts/{path:path}",
    summary="Download an artifact",
    response_class=Response,
    responses=DOWNLOAD,
)
@waits_for_store
def download_artifact(
    request: Request,
    job_id: JobId,
    path: FilePath,
    redirect: Redirect = False,  # noqa: FBT002 - a query parameter
    caller: Caller = require(Role.VIEWER),
) -> Response:
    """Stream a file; ranges, `If-(None-)Match`, `If-Range`, HEAD; its ETag is its sha256."""
    with transaction() as session:
        file = service.find_artifact(session, caller.project_id, job_id, path)
    return send_file(request, get_store(), file, redirect=redirect)
