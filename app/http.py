"""How errors become answers, and what every route shares: ids, unknown-parameter check."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast, get_args, get_origin

import sqlalchemy.exc
from fastapi import APIRouter, FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, SecretStr, ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from app import journal, problem
from app.errors import FieldProblem, InvalidPayload, ServiceError
from trainer_core.problems import MOST, explain_errors, nearest, to_pointer

_log = logging.getLogger(__name__)
Answers = dict[int | str, dict[str, Any]]  # documented answers of a route, by status
_MOST_PARAMETERS = 100
_LONGEST = 2000
# How parameters begin and end whose names callers choose, by route.
_FREE = {"/jobs": ("label.", ""), "/v1/fine_tuning/jobs": ("metadata[", "]")}
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


async def _not_storable(_: Request, error: Exception) -> Response:
    _log.warning("not storable: %s", getattr(error, "orig", None) or error)
    message = "a text holds a NUL character, or a number is out of range; nothing was stored"
    return _respond(problem.problem(422, "Invalid payload", "not_storable", message))


_UNREADABLE = "the body cannot be read: it must be JSON in UTF-8, and not nested too deeply"
_HTTP = {
    400: ("Bad request", "malformed_json", _UNREADABLE),
    404: ("Not found", "no_such_path", "there is nothing at this path; GET /docs shows what is"),
    405: ("Method not allowed", "method_not_allowed", "this path does not take this method"),
    413: ("Too large", "too_large", None),
}


class _HttpErrors:
    """Answers what the framework raises; 405 with every method that the path takes."""

    def __init__(self, routers: Sequence[APIRouter]) -> None:
        self._routes = [r for router in routers for r in router.routes if isinstance(r, Route)]

    async def __call__(self, request: Request, raised: Exception) -> Response:
        """Return the problem that the error stands for."""
        error = cast("HTTPException", raised)
        title, code, message = _HTTP.get(error.status_code, ("Error", "http_error", None))
        document = problem.problem(error.status_code, title, code, message or str(error.detail))
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(sorted(self._methods(request.url.path)))
        return _respond(document, headers)

    def _methods(self, path: str) -> set[str]:
        found = [r.methods or set() for r in self._routes if r.path_regex.match(path)]
        return set().union(*found)


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
    model = _model_in(field.field_info.annotation)
    if model is None:
        return []
    if error.body is None:
        return [FieldProblem(pointer="", message="the body is missing; it must be a JSON object")]
    if isinstance(error.body, bytes):
        message = "send the body as JSON, with the header `Content-Type: application/json`"
        return [FieldProblem(pointer="", message=message)]
    return body_problems(model, error.body)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the body's model, also where the body may be left out (`Model | None`)."""
    for member in (annotation, *get_args(annotation)):
        if isinstance(member, type) and issubclass(member, BaseModel):
            return member
    return None


def body_problems(model: type[BaseModel], body: Any) -> list[FieldProblem]:
    """Return what keeps this body from being a `model`."""
    try:
        model.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False)
        first = found[:MOST]
        hidden = [e for e in first if _is_secret(model, e["loc"])]
        shown = explain_errors([e for e in first if e not in hidden], model)
        problems = [
            *(FieldProblem(**problem.model_dump()) for problem in shown),
            *(FieldProblem(pointer=to_pointer(e["loc"]), message=_reason(e)) for e in hidden),
        ]
        if len(found) > len(first):
            more = f"and {len(found) - len(first)} more fields are wrong"
            problems.append(FieldProblem(pointer="", message=more))
        return [_shortened(each) for each in problems]
    return []


def _shortened(wrong: FieldProblem) -> FieldProblem:
    """The problem without the length of what was sent: a field's name may be a megabyte."""
    return FieldProblem(
        pointer=wrong.pointer[:_LONGEST], message=wrong.message[:_LONGEST], value=wrong.value
    )


def _is_secret(model: type[BaseModel], location: tuple[str | int, ...]) -> bool:
    """Say whether a value must not be repeated in the answer."""
    fields = model.model_fields
    if not location:  # the whole body, whatever it is, was meant to hold the secret
        return any(field.annotation is SecretStr for field in fields.values())
    field = fields.get(str(location[0]))
    return field is not None and field.annotation is SecretStr


def _reason(error: Mapping[str, Any]) -> str:
    return str(error["msg"]).removeprefix("Value error, ")


def _parameter_problem(error: dict[str, Any]) -> FieldProblem:
    where, *names = error["loc"]
    name = ".".join(str(n) for n in names)
    return FieldProblem(
        pointer=to_pointer(names) if where == "body" else "",
        message=error["msg"] if where == "body" else f"{where} `{name}`: {error['msg']}",
        value=repr(error.get("input"))[:80],
    )


def refuse_unknown_query(request: Request) -> None:
    """Refuse query parameters that the route does not know, naming the nearest one."""
    route = request.scope.get("route")
    dependant = getattr(route, "dependant", None)
    if dependant is None or not request.query_params:
        return
    known = query_names(dependant)
    _refuse_odd_query(request.query_params.multi_items(), known)
    free = _FREE.get(getattr(route, "path", ""), ("\0", ""))
    unknown = [n for n in request.query_params if n not in known and not _is_of(n, *free)]
    if unknown:
        raise InvalidPayload(
            [
                FieldProblem(
                    pointer="",
                    message=f"query `{name[:200]}`: there is no such parameter here"
                    f"{_hint(name[:200], list(known))}",
                )
                for name in unknown[:MOST]
            ],
            "unknown_parameter",
        )


def _is_of(name: str, begins: str, ends: str) -> bool:
    return name.startswith(begins) and name.endswith(ends)


def _refuse_odd_query(given: list[tuple[str, str]], lists: Mapping[str, bool]) -> None:
    """Refuse too many parameters, NUL characters, and one that is no list and comes twice."""
    if len(given) > _MOST_PARAMETERS:
        message = f"a query has at most {_MOST_PARAMETERS} parameters"
        raise InvalidPayload([FieldProblem(pointer="", message=message)], "too_many_parameters")
    if nul := [name for name, value in given if "\0" in value]:
        message = f"query `{nul[0]}`: a NUL character is in nothing that is stored here"
        raise InvalidPayload([FieldProblem(pointer="", message=message)])
    for name, count in Counter(name for name, _ in given).most_common():
        if count > 1 and not lists.get(name):
            message = f"query `{name[:200]}` comes {count} times: give it once"
            raise InvalidPayload([FieldProblem(pointer="", message=message)])


def _hint(name: str, known: list[str]) -> str:
    close = nearest(name, known)
    return f"; did you mean `{close}`?" if close else ""


def query_names(dependant: Any) -> dict[str, bool]:
    """Return all query parameters that a route and its dependencies declare: name, whether a list.

    What is a list may come more than once.
    """
    names: dict[str, bool] = {}
    for field in dependant.query_params:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            for name, info in model.model_fields.items():
                names[info.alias or name] = get_origin(info.annotation) is list
        else:
            names[field.alias] = get_origin(model) is list
    for child in dependant.dependencies:
        names |= query_names(child)
    return names


def handle_errors(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Have every error answered as problem+json; `routers` are those of the app."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _HttpErrors(routers))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(sqlalchemy.exc.DataError, _not_storable)
    for outage in problem.OUTAGES:
        app.add_exception_handler(outage, _outage)
