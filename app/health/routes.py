"""`/healthz`, `/readyz` (open, names only) and `/metrics` (operators)."""

from fastapi import APIRouter, Request, Response

from app.auth import Caller, Role, require
from app.health import gauges
from app.health.schemas import Liveness, Readiness

router = APIRouter(tags=["health"])

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/healthz", summary="Is the process alive?")
async def healthz() -> Liveness:
    """Answer without looking at anything else."""
    return Liveness()


@router.get(
    "/readyz",
    summary="Can jobs be taken?",
    responses={
        503: {"model": Readiness, "description": "Something is missing; `missing` names it"}
    },
)
async def readyz(request: Request, response: Response) -> Readiness:
    """Look at database, broker, store, MLflow and workers, two seconds at most.

    An answer serves everybody for a second.
    """
    found: Readiness = await request.app.state.looks.readiness()
    if not found.ready:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    return found


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(_: Caller = require(Role.OPERATOR)) -> Response:
    """Return counters of this process and gauges over all projects."""
    return Response(gauges.exposition(), media_type=_TEXT)
