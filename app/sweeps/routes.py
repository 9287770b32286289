"""`/sweeps`: one spec with some fields varied, run as jobs, and the best of them."""

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Response

from app.auth import Caller, Role, require
from app.comparison import service as comparison
from app.comparison.schemas import Comparison, ComparisonQuery
from app.db import transaction
from app.http import ULID, Answers
from app.jobs.routes import IdempotencyKey
from app.store_threads import waits_for_store
from app.sweeps import examples, service
from app.sweeps.schemas import NewSweep, SweepOut, SweepPage, SweepQuery

router = APIRouter(prefix="/sweeps", tags=["sweeps"])

SweepId = Annotated[str, Path(pattern=f"^swp_{ULID}$", description="Id of the sweep.")]
_ABSENT: Answers = {404: {"description": "No such sweep"}}
_ONCE: Answers = {
    409: {"description": "The Idempotency-Key belongs to another request, or is in flight"}
}
_OVER: Answers = {409: {"description": "All runs have ended"}}


@router.post("", status_code=201, summary="Start a sweep", responses={**_ONCE})
def create_sweep(
    new: Annotated[NewSweep, Body(openapi_examples=examples.NEW)],
    response: Response,
    idempotency_key: IdempotencyKey = None,
    caller: Caller = require(Role.SUBMITTER),
) -> SweepOut:
    """Check every run as `POST /jobs` does and queue them all, or none of them.

    The runs are ordinary jobs. Once all have ended, the best of them is named, and registered.
    """
    with transaction() as session:
        made = service.create_sweep(session, caller.project_id, new, idempotency_key)
    response.headers["Location"] = f"/sweeps/{made.id}"
    return made


@router.get("", summary="List sweeps")
def list_sweeps(
    query: Annotated[SweepQuery, Query()], caller: Caller = require(Role.VIEWER)
) -> SweepPage:
    """Return a page of sweeps, newest first."""
    with transaction() as session:
        return service.list_sweeps(session, caller.project_id, query)


@router.get("/{sweep_id}", summary="Look at a sweep", responses={**_ABSENT})
def get_sweep(sweep_id: SweepId, caller: Caller = require(Role.VIEWER)) -> SweepOut:
    """Return the sweep: its runs with the fields in which they differ, and the best of them."""
    with transaction() as session:
        return service.show_sweep(session, caller.project_id, sweep_id)


@router.get("/{sweep_id}/comparison", summary="Compare a sweep's runs", responses={**_ABSENT})
@waits_for_store
def compare_runs(
    sweep_id: SweepId,
    query: Annotated[ComparisonQuery, Query()],
    caller: Caller = require(Role.VIEWER),
) -> Comparison:
    """Return the runs side by side: the fields in which they differ, metrics and curves."""
    with transaction() as session:
        job_ids = service.run_ids(session, caller.project_id, sweep_id)
    return comparison.compare(caller.project_id, job_ids, query)


@router.post(
    "/{sweep_id}/cancel",
    status_code=202,
    summary="Cancel a sweep",
    responses={**_ABSENT, **_OVER},
)
def cancel_sweep(sweep_id: SweepId, caller: Caller = require(Role.SUBMITTER)) -> SweepOut:
    """Cancel every run that has not ended. Nothing is registered then. Repeating it is safe."""
    with transaction() as session:
        return service.cancel_sweep(session, caller.project_id, sweep_id)
