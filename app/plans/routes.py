"""`/plans`: what a job will do and need, before it is submitted."""

from collections.abc import Callable
from typing import Annotated, TypeVar

import anyio
from anyio import to_thread
from fastapi import APIRouter, Body, Path, Response
from sqlalchemy.orm import Session

from app.auth import Caller, Role, require
from app.db import transaction
from app.http import ULID, Answers
from app.jobs.spec import JobSpec
from app.plans import examples, service
from app.plans.schemas import PlanOut, PreviewOut, PreviewRequest
from app.presets.schemas import PresetJob
from app.presets.service import expand

router = APIRouter(prefix="/plans", tags=["plans"])
Result = TypeVar("Result")

_ABSENT: Answers = {404: {"description": "No such plan, or its time is over"}}
PlanId = Annotated[str, Path(pattern=f"^plan_{ULID}$", description="Id of the plan.")]
_LOOK_EVERY = 0.1
_PLAN_WAIT, _PREVIEW_WAIT = 5.0, 20.0


@router.post("", status_code=201, response_model=PlanOut, summary="Plan a job")
async def make_plan(
    response: Response,
    spec: Annotated[JobSpec | PresetJob, Body(openapi_examples=examples.PLAN)],
    caller: Caller = require(Role.SUBMITTER),
) -> PlanOut:
    """Check the spec as `POST /jobs` does, and say what the job will do and need.

    The answer is an estimate by the first rows; all rows are prepared behind it, and `GET` is exact
    then. The same spec on the same data gets the same plan again for a day, so that a repeated
    call is safe. Where no host answers within seconds there are no figures yet.
    """
    project = caller.project_id

    def begin(session: Session) -> str:
        whole, _ = expand(session, project, spec)
        return service.begin(session, project, whole, None).id

    plan_id = await _in_thread(begin)
    await _until_told(plan_id, _PLAN_WAIT)
    response.headers["Location"] = f"/plans/{plan_id}"
    return await _in_thread(lambda session: service.show(session, project, plan_id))


@router.post("/preview", summary="See the first samples as the model will")
async def preview(
    body: Annotated[PreviewRequest, Body(openapi_examples=examples.PREVIEW)],
    caller: Caller = require(Role.SUBMITTER),
) -> PreviewOut:
    """Return the first training samples token by token, and which of them carry loss.

    Only these rows are read. Where no host answers within seconds there are none yet: ask again.
    """
    project, samples = caller.project_id, body.samples
    plan_id = await _in_thread(
        lambda session: service.begin(session, project, body.spec, samples).id
    )
    await _until_told(plan_id, _PREVIEW_WAIT)
    return await _in_thread(lambda session: service.said_of_preview(session, plan_id))


@router.get("/{plan_id}", summary="Look at a plan", responses={**_ABSENT})
def get_plan(plan_id: PlanId, caller: Caller = require(Role.VIEWER)) -> PlanOut:
    """Return the plan: exact once all rows are prepared, an estimate until then."""
    with transaction() as session:
        return service.show(session, caller.project_id, plan_id)


async def _in_thread(work: Callable[[Session], Result]) -> Result:
    def call() -> Result:
        with transaction() as session:
            return work(session)

    return await to_thread.run_sync(call)


async def _until_told(plan_id: str, seconds: float) -> None:
    """Look again and again until something is there; no session is held in between."""
    for _ in range(int(seconds / _LOOK_EVERY)):
        if await _in_thread(lambda session: service.is_told(session, plan_id)):
            return
        await anyio.sleep(_LOOK_EVERY)
