"""`/jobs`: submit, look at, change, cancel, retry, clone and delete training jobs."""

from typing import Annotated

from fastapi import APIRouter, Body, Header, Query, Request, Response

from app.auth import Caller, Role, require
from app.db import statement, transaction
from app.errors import FieldProblem, InvalidPayload
from app.http import Answers, JobId
from app.jobs import examples, listing, pausing, service
from app.jobs.schemas import CloneRequest, JobOut, JobPage, JobPatch, JobQuery, RetryRequest
from app.jobs.spec import JobSpec
from app.jobs.submit import Submission, submit
from app.presets.schemas import PresetJob
from app.presets.service import submit_from
from app.storage import get_store
from app.store_threads import waits_for_store

router = APIRouter(prefix="/jobs", tags=["jobs"])

_ABSENT: Answers = {404: {"description": "No such job"}}
_ONCE: Answers = {
    409: {"description": "The Idempotency-Key belongs to another request, or is in flight"}
}
_STATE: Answers = {
    409: {"description": "Impossible in the job's present state; the message says why"}
}
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Makes the request safe to repeat: the same key and body get the same answer.",
        examples=["3f0c9a1e-nightly"],
    ),
]


def _created(job: JobOut) -> Response:
    """Answer with the job's own JSON: FastAPI would validate it once more, in one more thread."""
    headers = {"Location": f"/jobs/{job.id}"}
    return Response(job.model_dump_json(), 201, headers, media_type="application/json")


@router.post(
    "",
    status_code=201,
    response_model=JobOut,
    summary="Submit a training job",
    responses={**_ONCE},
)
async def submit_job(
    request: Request,
    spec: Annotated[JobSpec | PresetJob, Body(openapi_examples=examples.SUBMIT)],
    idempotency_key: IdempotencyKey = None,
    caller: Caller = require(Role.SUBMITTER),
) -> Response:
    """Check the spec, fill in its defaults and queue the job.

    With `preset` the other fields are merged into the preset of that name.
    """
    run = request.app.state.statements.run
    if isinstance(spec, PresetJob):
        return _created(await run(submit_from, caller.project_id, spec, idempotency_key))
    return _created(await run(submit, Submission(caller.project_id, spec, idempotency_key)))


@router.get("", summary="List jobs", response_model_exclude_unset=True)
def list_jobs(
    query: Annotated[JobQuery, Query()], request: Request, caller: Caller = require(Role.VIEWER)
) -> JobPage:
    """Return a page of jobs, newest first. `label.<key>=<value>` filters by label."""
    labels = {
        name.removeprefix("label."): value
        for name, value in request.query_params.items()
        if name.startswith("label.")
    }
    if "" in labels:
        message = "query label.: write label.<key>=<value>"
        raise InvalidPayload([FieldProblem(pointer="", message=message)])
    with transaction() as session:
        return listing.list_jobs(session, caller.project_id, query, labels)


@router.get("/{job_id}", summary="Look at a job", responses={**_ABSENT})
def get_job(job_id: JobId, caller: Caller = require(Role.VIEWER)) -> JobOut:
    """Return where the job stands, why it waits, its attempts and its traces elsewhere."""
    with transaction() as session:
        return service.show_job(session, caller.project_id, job_id)


@router.patch(
    "/{job_id}", summary="Change name, labels or priority", responses={**_ABSENT, **_STATE}
)
def patch_job(
    job_id: JobId,
    patch: Annotated[JobPatch, Body(openapi_examples=examples.PATCH)],
    caller: Caller = require(Role.SUBMITTER),
) -> JobOut:
    """Change what may change after submission; a field left out stays as it is."""
    with transaction() as session:
        return service.patch_job(session, caller.project_id, job_id, patch)


@router.post(
    "/{job_id}/cancel", status_code=202, summary="Cancel a job", responses={**_ABSENT, **_STATE}
)
def cancel_job(job_id: JobId, caller: Caller = require(Role.SUBMITTER)) -> JobOut:
    """Cancel a waiting job at once; ask a running one to stop. Repeating it changes nothing."""
    with transaction() as session:
        return service.cancel_job(session, caller.project_id, job_id)


@router.post(
    "/{job_id}/pause", status_code=202, summary="Pause a job", responses={**_ABSENT, **_STATE}
)
def pause_job(job_id: JobId, caller: Caller = require(Role.SUBMITTER)) -> JobOut:
    """Set a waiting job aside at once; have a running one write a checkpoint and free its machine.

    Repeating it changes nothing. A job whose training is over cannot be paused any more.
    """
    with transaction() as session:
        return pausing.pause_job(session, caller.project_id, job_id)


@router.post(
    "/{job_id}/resume", status_code=202, summary="Resume a job", responses={**_ABSENT, **_STATE}
)
def resume_job(job_id: JobId, caller: Caller = require(Role.SUBMITTER)) -> JobOut:
    """Queue a paused job again, to go on from its checkpoint, or take a pause back.

    Repeating it changes nothing.
    """
    with transaction() as session:
        return pausing.resume_job(session, caller.project_id, job_id)


@router.post(
    "/{job_id}/retry",
    status_code=201,
    response_model=JobOut,
    summary="Try a finished job again",
    responses={**_ABSENT, **_STATE},
)
def retry_job(
    job_id: JobId,
    body: Annotated[RetryRequest | None, Body(openapi_examples=examples.RETRY)] = None,
    idempotency_key: IdempotencyKey = None,
    caller: Caller = require(Role.SUBMITTER),
) -> Response:
    """Make a new job that goes on from the newest checkpoint, or from scratch."""
    with transaction() as session:  # the parent stays locked until its child names the checkpoint
        job = service.retry_job(
            session, caller.project_id, job_id, body or RetryRequest(), idempotency_key
        )
    return _created(job)


@router.post(
    "/{job_id}/clone",
    status_code=201,
    response_model=JobOut,
    summary="Submit a job again with changes",
    responses={**_ABSENT, **_ONCE},
)
def clone_job(
    job_id: JobId,
    body: Annotated[CloneRequest | None, Body(openapi_examples=examples.CLONE)] = None,
    idempotency_key: IdempotencyKey = None,
    caller: Caller = require(Role.SUBMITTER),
) -> Response:
    """Make a new job of the same spec; `overrides` is a JSON merge patch on it."""
    with statement() as session:
        job = service.clone_job(
            session, caller.project_id, job_id, body or CloneRequest(), idempotency_key
        )
    return _created(job)


@router.delete(
    "/{job_id}", status_code=204, summary="Delete a job", responses={**_ABSENT, **_STATE}
)
@waits_for_store
def delete_job(
    job_id: JobId,
    *,
    artifacts: Annotated[
        bool, Query(description="Delete its artifacts and models as well.")
    ] = False,
    caller: Caller = require(Role.SUBMITTER),
) -> None:
    """Delete a finished job and its checkpoints. What it published stays, or goes as well."""
    with transaction() as session:
        leftovers = service.prepare_deletion(
            session, caller.project_id, job_id, artifacts=artifacts
        )
    service.delete_objects(get_store(), leftovers)
    with transaction() as session:
        service.delete_job(session, caller.project_id, job_id)
