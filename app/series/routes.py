"""`/jobs/{id}/metrics`: series of what was measured, for charts and spreadsheets."""

from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Response

from app.auth import Caller, Role, require
from app.http import JobId
from app.series import service
from app.series.schemas import Series, SeriesQuery
from app.storage import content_disposition
from app.store_threads import in_store_thread

router = APIRouter(tags=["events"])

_CSV = "metric,step,value,time\nloss,1,2.31,2026-11-30T10:00:00+00:00\n"
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}, "example": _CSV}}},
    404: {"description": "No such job"},
}


@router.get(
    "/jobs/{job_id}/metrics", summary="Read metrics", response_model=Series, responses=_ANSWERS
)
async def job_metrics(
    job_id: JobId,
    query: Annotated[SeriesQuery, Query()],
    accept: Annotated[
        str, Header(description="`text/csv` gets CSV, anything else JSON.")
    ] = "application/json",
    caller: Caller = require(Role.VIEWER),
) -> Any:
    """Return series by name, down-sampled to `max_points` each, as JSON or CSV."""
    wants_csv = query.format == "csv" or (query.format is None and "text/csv" in accept.lower())
    source = await to_thread.run_sync(service.find, caller.project_id, job_id)
    run = in_store_thread if source.ranges else to_thread.run_sync
    return await run(_answer, source, query, wants_csv)


def _answer(source: service.Source, query: SeriesQuery, wants_csv: bool) -> Response:  # noqa: FBT001
    with service.read_points(source, query) as points:
        if not wants_csv:
            body = Series(series=service.by_name(points)).model_dump_json()
            return Response(body, media_type="application/json")
        body = "".join(service.as_csv(points))
    headers = {"Content-Disposition": content_disposition(f"{source.job_id}-metrics.csv")}
    return Response(body, headers=headers, media_type="text/csv")
