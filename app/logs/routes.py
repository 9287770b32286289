"""`/jobs/{id}/logs`: what a job has logged, as text."""

from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from app.auth import Caller, Role, require
from app.http import JobId
from app.logs import service
from app.logs.schemas import LogQuery
from app.storage import content_disposition
from app.store_threads import each_in_store_thread, in_store_thread

router = APIRouter(tags=["events"])

_LINE = "2026-11-30T10:00:00.123Z info    step 40: loss 1.284\n"
_NEXT = {
    "description": "Pass as `after` to get what was logged since.",
    "schema": {"type": "integer"},
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/plain": {"schema": {"type": "string"}, "example": _LINE}},
        "description": "Lines of text",
        "headers": {"X-Next-After": _NEXT},
    },
    404: {"description": "No such job, or the job has no such attempt"},
}


@router.get(
    "/jobs/{job_id}/logs",
    summary="Read a job's log",
    response_class=StreamingResponse,
    responses=_ANSWERS,
)
async def job_logs(
    job_id: JobId, query: Annotated[LogQuery, Query()], caller: Caller = require(Role.VIEWER)
) -> StreamingResponse:
    """Return lines of text, oldest first; a stream of `log` events shows the same live."""
    wanted = await to_thread.run_sync(service.find_range, caller.project_id, job_id, query)
    if query.tail is not None:
        run = in_store_thread if wanted.archived else to_thread.run_sync
        wanted = await run(service.newest_of, wanted, query.tail)
    headers = {"X-Next-After": str(wanted.last)}
    if query.download:
        headers["Content-Disposition"] = content_disposition(f"{job_id}.log")
    lines = service.lines(wanted)
    body = each_in_store_thread(lines) if wanted.archived else lines
    return StreamingResponse(body, headers=headers, media_type="text/plain")
