"""`/compare`: any jobs side by side."""

from typing import Annotated

from fastapi import APIRouter, Query

from app.auth import Caller, Role, require
from app.comparison import service
from app.comparison.schemas import CompareQuery, Comparison
from app.store_threads import waits_for_store

router = APIRouter(tags=["jobs"])


@router.get(
    "/compare", summary="Compare jobs", responses={404: {"description": "One of them is not there"}}
)
@waits_for_store
def compare_jobs(
    query: Annotated[CompareQuery, Query()], caller: Caller = require(Role.VIEWER)
) -> Comparison:
    """Return jobs side by side: the fields in which they differ, metrics and curves."""
    job_ids = [each.strip() for each in query.jobs.split(",") if each.strip()]
    return service.compare(caller.project_id, job_ids, query)
