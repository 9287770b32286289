"""`/jobs/{id}/hub`: pushes to a hub."""

from fastapi import APIRouter

from app.auth import Caller, Role, require
from app.db import transaction
from app.http import Answers, JobId
from app.hub import service
from app.jobs.schemas import JobOut

router = APIRouter(prefix="/jobs", tags=["jobs"])

_ANSWERS: Answers = {
    404: {"description": "No such job"},
    409: {"description": "Nothing is left to push; the message says why"},
}


@router.post(
    "/{job_id}/hub/retry",
    status_code=202,
    summary="Push to the hub again",
    responses=_ANSWERS,
)
def retry_push(job_id: JobId, caller: Caller = require(Role.SUBMITTER)) -> JobOut:
    """Make a push that failed again, after its token was replaced, say. Repeating it is safe."""
    with transaction() as session:
        return service.retry(session, caller.project_id, job_id)
