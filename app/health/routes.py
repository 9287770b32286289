"""`/healthz`, `/readyz` (open, names only) and `/metrics` (operators)."""

from fastapi import APIRouter, Response

from app.auth import Caller, Role, require
from app.health import gauges, service
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
def readyz(response: Response) -> Readiness:
    """Look at database, broker, store, MLflow and workers, two seconds at most."""
    found = service.readiness()
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
