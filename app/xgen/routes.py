"""`/api/train/*`: what XGen's training page and its proxy call."""

from typing import Annotated

from fastapi import APIRouter, Body, Path

from app.auth import Caller, Role, require
from app.db import transaction
from app.holds import service as holds
from app.holds.schemas import OfferList
from app.http import ULID, Answers
from app.jobs.routes import IdempotencyKey
from app.xgen import examples, instances, mlflow, service
from app.xgen.form import TrainForm
from app.xgen.schemas import (
    InstanceList,
    InstanceOut,
    InstanceRequest,
    MlflowInfo,
    MlflowRequest,
    TrainJobs,
    TrainStatus,
)

router = APIRouter(prefix="/api/train", tags=["xgen"])

_ABSENT: Answers = {404: {"description": "No such job"}}
_ONCE: Answers = {
    409: {"description": "The Idempotency-Key belongs to another request, or is in flight"}
}
_ENDED: Answers = {409: {"description": "The job has ended already"}}
_NO_HOLD: Answers = {404: {"description": "No such hold in the project"}}
HoldId = Annotated[
    str, Path(pattern=f"^hold_{ULID}$", description="The `instance_id` of a held device.")
]
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


@router.get("/offers", summary="List devices that can be held")
def list_offers(caller: Caller = require(Role.VIEWER)) -> OfferList:
    """Return the devices of hosts that have joined, and which of them can be held for a job."""
    with transaction() as session:
        return holds.list_offers(session, caller.project_id)


@router.post(
    "/instances",
    summary="Hold a device for the next job",
    responses={
        404: {"description": "No such offer"},
        409: {
            "description": "It cannot be had: rented, busy, held for others, one too many, "
            "its host drained"
        },
    },
)
def rent(
    asked: Annotated[InstanceRequest, Body(openapi_examples=examples.INSTANCE)],
    caller: Caller = require(Role.SUBMITTER),
) -> InstanceOut:
    """Keep a device of a host that has joined for the project's next job, for half an hour.

    That job is placed there before others, and uses the hold up. A repeated call gets the same
    hold, never a second one. Machines are not rented: such an offer is refused with the reason.
    """
    with transaction() as session:
        return instances.rent(session, caller.project_id, asked)


@router.get("/instances", summary="List held devices")
def list_instances(caller: Caller = require(Role.VIEWER)) -> InstanceList:
    """Return the project's newest hundred holds, open or over."""
    with transaction() as session:
        return instances.list_instances(session, caller.project_id)


@router.get("/instances/{instance_id}", summary="Look at a held device", responses=_NO_HOLD)
def show_instance(instance_id: HoldId, caller: Caller = require(Role.VIEWER)) -> InstanceOut:
    """Return whether the device is still held, or what became of it."""
    with transaction() as session:
        return instances.show(holds.find_hold(session, caller.project_id, instance_id))


@router.delete("/instances/{instance_id}", summary="Give a device back", responses=_NO_HOLD)
def give_back(instance_id: HoldId, caller: Caller = require(Role.SUBMITTER)) -> InstanceOut:
    """End the hold before a job has used it; one that is over stays as it is, and so does a job."""
    with transaction() as session:
        return instances.show(holds.give_back(session, caller.project_id, instance_id))
