"""How errors become answers, and what every route shares: ids, unknown-parameter check."""

import difflib
import logging
from collections.abc import Sequence
from typing import Annotated, Any, cast

from fastapi import FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from app import journal, problem
from app.errors import FieldProblem, InvalidPayload, ServiceError
from app.pointers import explain_body

_log = logging.getLogger(__name__)
Answers = dict[int | str, dict[str, Any]]  # documented answers of a route, by status
ULID = "[0-9A-HJKMNP-TV-Z]{26}"


def _id(prefix: str, what: str) -> Any:
    return Path(pattern=f"^{prefix}_{ULID}$", description=f"Id of {what}.")


JobId = Annotated[str, _id("job", "the job")]
KeyId = Annotated[str, _id("key", "the API key")]


def _respond(document: problem.Problem, headers: dict[str, str] | None = None) -> Response:
    return Response(
        problem.encoded(document, journal.request_id.get()),
        status_code=document.status,
        media_type=problem.MEDIA_TYPE,
        headers=headers,
    )


async def _service_error(_: Request, error: Exception) -> Response:
    known = cast("ServiceError", error)
    headers = problem.RETRY_AFTER if known.status == 503 else None
    return _respond(problem.of_service_error(known), headers)


async def _outage(_: Request, error: Exception) -> Response:
    _log.warning("outage: %s", getattr(error, "orig", None) or error)
    return _respond(problem.of_outage(error), problem.RETRY_AFTER)


_HTTP = {
    404: ("Not found", "no_such_path", "there is nothing at this path; GET /docs shows what is"),
    405: ("Method not allowed", "method_not_allowed", "this path does not take this method"),
    413: ("Too large", "too_large", None),
}


async def _http_error(_: Request, raised: Exception) -> Response:
    error = cast("HTTPException", raised)
    title, code, message = _HTTP.get(error.status_code, ("Error", "http_error", None))
    document = problem.problem(error.status_code, title, code, message or str(error.detail))
    return _respond(document, dict(error.headers or {}))


async def _invalid(request: Request, raised: Exception) -> Response:
    error = cast("RequestValidationError", raised)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        where, why = first["loc"][-1], first["ctx"]["error"]
        message = f"the body is not JSON: {why} at character {where}"
        return _respond(problem.problem(400, "Bad request", "malformed_json", message))
    problems = _body_problems(request, error) or [_parameter_problem(e) for e in error.errors()]
    return _respond(problem.of_service_error(InvalidPayload(problems)))


def _body_problems(request: Request, error: RequestValidationError) -> list[FieldProblem]:
    """Explain a wrong body with the model that it should have been."""
    field = getattr(request.scope.get("route"), "body_field", None)
    if field is None or any(e["loc"][0] != "body" for e in error.errors()):
        return []
    annotation = field.field_info.annotation
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return []
    if error.body is None:
        return [FieldProblem(pointer="", message="the body is missing; it must be a JSON object")]
    if isinstance(error.body, bytes):
        message = "send the body as JSON, with the header `Content-Type: application/json`"
        return [FieldProblem(pointer="", message=message)]
    try:
        TypeAdapter(annotation).validate_python(error.body)
    except ValidationError as again:
        return explain_body(again, annotation)
    return []


def _parameter_problem(error: dict[str, Any]) -> FieldProblem:
    where, *names = (str(part) for part in error["loc"])
    return FieldProblem(
        pointer="/" + "/".join(names) if where == "body" else "",
        message=f"{where} {'.'.join(names)}: {error['msg']}" if where != "body" else error["msg"],
        value=repr(error.get("input"))[:100],
    )


def nearest(name: str, known: Sequence[str]) -> str:
    """Return ` (did you mean …?)` for the closest known name, or nothing."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


async def refuse_unknown_query(request: Request) -> None:
    """Refuse query parameters that the route does not know, naming the nearest one."""
    route = request.scope.get("route")
    dependant = getattr(route, "dependant", None)
    if dependant is None or not request.query_params:
        return
    known = query_names(dependant)
    unknown = [n for n in request.query_params if n not in known and not n.startswith("label.")]
    if unknown:
        raise InvalidPayload(
            [
                FieldProblem(
                    pointer="",
                    message=f"query {name}: there is no such parameter here{nearest(name, known)}",
                )
                for name in unknown
            ],
            "unknown_parameter",
        )


def query_names(dependant: Any) -> list[str]:
    """Return the names of all query parameters that a route and its dependencies declare."""
    names: list[str] = []
    for field in dependant.query_params:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            names += [info.alias or name for name, info in model.model_fields.items()]
        else:
            names.append(field.alias)
    for child in dependant.dependencies:
        names += query_names(child)
    return names


def handle_errors(app: FastAPI) -> None:
    """Have every error answered as problem+json."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    for outage in problem.OUTAGES:
        app.add_exception_handler(outage, _outage)
