"""`/targets`: where jobs can run, and hosts taken out of service."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path

from app.auth import Caller, Role, require
from app.db import transaction
from app.http import Answers
from app.targets import service
from app.targets.schemas import DrainRequest, TargetList, WorkerOut

router = APIRouter(prefix="/targets", tags=["targets"])

_ABSENT: Answers = {404: {"description": "No such host"}}
_EXAMPLES: dict[str, Any] = {"now": {"value": {"now": True}}, "gently": {"value": {"now": False}}}
HostId = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9._-]{1,128}$", description="Id of the host, as `GET /targets`.")
]


@router.get("", summary="Hosts, devices and load")
def list_targets(caller: Caller = require(Role.VIEWER)) -> TargetList:
    """Return where jobs can run: the processes that are online, their devices, the queue."""
    with transaction() as session:
        return service.list_targets(session, caller.project_id)


@router.post(
    "/local/workers/{worker_id}/drain",
    status_code=202,
    summary="Drain a host",
    responses={**_ABSENT},
)
def drain_host(
    worker_id: HostId,
    body: Annotated[DrainRequest | None, Body(openapi_examples=_EXAMPLES)] = None,
    caller: Caller = require(Role.OPERATOR),
) -> WorkerOut:
    """Give the host no new attempt; those that run there finish, or move elsewhere with `now`.

    Repeating it changes nothing; it lasts until it is taken back, also over a restart of the host.
    """
    wish = body or DrainRequest()
    with transaction() as session:
        return service.drain(session, caller.project_id, worker_id, now=wish.now)


@router.delete(
    "/local/workers/{worker_id}/drain", summary="Take a drain back", responses={**_ABSENT}
)
def undrain_host(worker_id: HostId, caller: Caller = require(Role.OPERATOR)) -> WorkerOut:
    """Let the host get attempts again; those that were told to move still move."""
    with transaction() as session:
        return service.undrain(session, caller.project_id, worker_id)
