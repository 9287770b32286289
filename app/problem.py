"""Every error as one shape: RFC 9457 problem details, whatever raised it.

Knows no web framework, so that middleware and exception handlers share it.
"""

import json
from typing import Any

import redis
import sqlalchemy.exc
from pydantic import BaseModel, Field

from app.errors import FieldProblem, ServiceError

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = {"Retry-After": "5"}
OUTAGES: tuple[type[Exception], ...] = (
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.InterfaceError,
    sqlalchemy.exc.TimeoutError,
    redis.RedisError,
)


class Problem(BaseModel):
    """What went wrong, for machines (`code`) and for people (`message`, `detail`)."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Not found"])
    status: int = Field(examples=[404])
    code: str = Field(examples=["job_not_found"])
    message: str = Field(examples=["there is no job job_01J…"])
    detail: str = Field(description="The same text as `message`.")
    request_id: str | None = None
    errors: list[FieldProblem] = Field(
        default_factory=list, description="Each wrong field, with a JSON pointer into the body."
    )


def problem(
    status: int, title: str, code: str, message: str, errors: list[FieldProblem] | None = None
) -> Problem:
    """Return a problem document."""
    return Problem(
        type="about:blank",
        title=title,
        status=status,
        code=code,
        message=message,
        detail=message,
        errors=errors or [],
    )


def of_service_error(error: ServiceError) -> Problem:
    """Return the problem that a ServiceError stands for."""
    return problem(error.status, error.title, error.code, error.message, error.problems)


def of_outage(error: Exception) -> Problem:
    """Return the problem of a database or broker that does not answer now."""
    part = "broker" if isinstance(error, redis.RedisError) else "database"
    message = f"the {part} does not answer now; nothing was changed by this request, try it again"
    return problem(503, "Unavailable", f"{part}_unavailable", message)


def encoded(document: Problem, request_id: str | None) -> bytes:
    """Return the document as JSON bytes."""
    data: dict[str, Any] = document.model_dump(exclude_none=True)
    if request_id:
        data["request_id"] = request_id
    return json.dumps(data, ensure_ascii=False).encode()
