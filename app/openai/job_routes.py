"""`/v1/fine_tuning/jobs`: supervised and preference jobs as OpenAI's clients handle them."""

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request

from app.auth import Caller, Role, require
from app.db import transaction
from app.http import Answers
from app.jobs.pausing import pause_job, resume_job
from app.jobs.routes import IdempotencyKey
from app.jobs.service import cancel_job
from app.openai import events, examples, jobs
from app.openai.repeats import RetryCount
from app.openai.request import CheckpointQuery, EventQuery, JobListQuery, JobRequest
from app.openai.schemas import (
    FineTuningCheckpointPage,
    FineTuningEventPage,
    FineTuningJob,
    FineTuningJobPage,
)
from app.store_threads import waits_for_store

router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["openai"])

_ABSENT: Answers = {404: {"description": "No such job"}}
_ONCE: Answers = {409: {"description": "A request with this Idempotency-Key is in flight"}}
Job = Annotated[str, Path(max_length=100, description="Id of the fine-tuning job.")]
_FILTER = "metadata["


@router.post("", summary="Create a fine-tuning job", responses=_ONCE)
def create_job(
    request: Annotated[JobRequest, Body(openapi_examples=examples.CREATE)],
    idempotency_key: IdempotencyKey = None,
    tried: RetryCount = None,
    caller: Caller = require(Role.SUBMITTER),
) -> FineTuningJob:
    """Make an ordinary job: `/jobs` shows it too, with all that this API has no word for."""
    with transaction() as session:
        return jobs.create(session, caller.project_id, request, idempotency_key, tried)


@router.get("", summary="List fine-tuning jobs")
def list_jobs(
    query: Annotated[JobListQuery, Query()],
    request: Request,
    caller: Caller = require(Role.VIEWER),
) -> FineTuningJobPage:
    """Return jobs, newest first, however they were submitted."""
    metadata = {
        name.removeprefix(_FILTER)[:-1]: value
        for name, value in request.query_params.items()
        if name.startswith(_FILTER)
    }
    with transaction() as session:
        return jobs.list_jobs(session, caller.project_id, query, metadata)


@router.get("/{job_id}", summary="Look at a fine-tuning job", responses=_ABSENT)
def get_job(job_id: Job, caller: Caller = require(Role.VIEWER)) -> FineTuningJob:
    """Return where the job stands."""
    with transaction() as session:
        return jobs.show(session, caller.project_id, job_id)


@router.post("/{job_id}/cancel", summary="Cancel a fine-tuning job", responses=_ABSENT)
def cancel(job_id: Job, caller: Caller = require(Role.SUBMITTER)) -> FineTuningJob:
    """Cancel a waiting job at once; ask a running one to stop."""
    with transaction() as session:
        return jobs.change(session, caller.project_id, job_id, cancel_job)


@router.post("/{job_id}/pause", summary="Pause a fine-tuning job", responses=_ABSENT)
def pause(job_id: Job, caller: Caller = require(Role.SUBMITTER)) -> FineTuningJob:
    """Have a running job write a checkpoint and free its machine; it is `paused` then."""
    with transaction() as session:
        return jobs.change(session, caller.project_id, job_id, pause_job)


@router.post("/{job_id}/resume", summary="Resume a fine-tuning job", responses=_ABSENT)
def resume(job_id: Job, caller: Caller = require(Role.SUBMITTER)) -> FineTuningJob:
    """Queue a paused job again, to go on from its checkpoint with the same numbers."""
    with transaction() as session:
        return jobs.change(session, caller.project_id, job_id, resume_job)


@router.get("/{job_id}/events", summary="List a fine-tuning job's events", responses=_ABSENT)
@waits_for_store
def list_events(
    job_id: Job, query: Annotated[EventQuery, Query()], caller: Caller = require(Role.VIEWER)
) -> FineTuningEventPage:
    """Return events, newest first. `GET /jobs/{id}/events` streams them."""
    return events.page_of(caller.project_id, job_id, query)


@router.get(
    "/{job_id}/checkpoints", summary="List a fine-tuning job's checkpoints", responses=_ABSENT
)
@waits_for_store
def list_checkpoints(
    job_id: Job, query: Annotated[CheckpointQuery, Query()], caller: Caller = require(Role.VIEWER)
) -> FineTuningCheckpointPage:
    """Return the checkpoints that are kept, newest first, with what was measured until then."""
    return jobs.checkpoints(caller.project_id, job_id, query)
