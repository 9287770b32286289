"""`/api/train/*`: what XGen's training page and its proxy call."""

from typing import Annotated

from fastapi import APIRouter, Body, Path

from app.auth import Caller, Role, require
from app.db import transaction
from app.errors import Conflict
from app.http import Answers
from app.jobs.routes import IdempotencyKey
from app.xgen import examples, mlflow, service
from app.xgen.form import TrainForm
from app.xgen.schemas import MlflowInfo, MlflowRequest, TrainJobs, TrainStatus

router = APIRouter(prefix="/api/train", tags=["xgen"])

_ABSENT: Answers = {404: {"description": "No such job"}}
_ONCE: Answers = {
    409: {"description": "The Idempotency-Key belongs to another request, or is in flight"}
}
_ENDED: Answers = {409: {"description": "The job has ended already"}}
Reference = Annotated[
    str,
    Path(
        min_length=1,
        max_length=255,
        description="The job's id, or its `mlflow_run_id`: then the newest job that has it.",
    ),
]


@router.post("/start", summary="Start a training from XGen's form", responses=_ONCE)
def start(
    form: Annotated[TrainForm, Body(openapi_examples=examples.START)],
    idempotency_key: IdempotencyKey = None,
    caller: Caller = require(Role.SUBMITTER),
) -> TrainStatus:
    """Make an ordinary job of the form. What has no effect is named in `warnings`.

    Tokens and keys of the form become secrets of the project and are never shown again.
    """
    with transaction() as session:
        return service.start(session, caller.project_id, form, idempotency_key)


@router.get("/status/{job_id}", summary="Look at a training", responses=_ABSENT)
def status(job_id: Reference, caller: Caller = require(Role.VIEWER)) -> TrainStatus:
    """Return where the job stands, in one of XGen's words and in ours."""
    with transaction() as session:
        return service.show(session, caller.project_id, job_id)


@router.get("/jobs", summary="List trainings")
def jobs(caller: Caller = require(Role.VIEWER)) -> TrainJobs:
    """Return the project's jobs, newest first, however they were submitted."""
    with transaction() as session:
        return service.list_jobs(session, caller.project_id)


@router.delete("/stop/{job_id}", summary="Stop a training", responses={**_ABSENT, **_ENDED})
def stop(job_id: Reference, caller: Caller = require(Role.SUBMITTER)) -> TrainStatus:
    """Cancel the job: a waiting one at once, a running one within seconds."""
    with transaction() as session:
        return service.stop(session, caller.project_id, job_id)


@router.post(
    "/mlflow",
    summary="Look at a run",
    responses={404: {"description": "No such run in the project"}},
)
def mlflow_run(
    asked: Annotated[MlflowRequest, Body(openapi_examples=examples.MLFLOW)],
    caller: Caller = require(Role.VIEWER),
) -> MlflowInfo:
    """Return what this service mirrors of a job to MLflow: metrics, parameters, where it is."""
    with transaction() as session:
        return mlflow.run_info(session, caller.project_id, asked)


# Not in the API's description, which lists what can succeed.
@router.post("/instances", include_in_schema=False)
def rent(caller: Caller = require(Role.SUBMITTER)) -> None:
    """Refuse to rent a machine: the page shows the reason. Its body is not read, nor kept."""
    del caller
    raise Conflict(
        "offer_id cannot be had: this service rents no machines. Start the training without one: "
        "it runs on the hosts that have joined, which GET /targets lists, as soon as one has room",
        "no_rented_machines",
    )
