"""The API's description: FastAPI's own, with every error answered as it really is."""

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from app.auth import OPEN_PATHS
from app.openai.errors import PREFIX, ErrorAnswer
from app.problem import MEDIA_TYPE, Problem

_COMMON = {
    "400": "Malformed: not JSON, or a header or cursor that is none",
    "401": "No API key, or one that is not valid",
    "403": "The key's role does not suffice",
    "404": "No such thing in the caller's project",
    "413": "The body is above its limit",
    "422": "One or more fields are wrong; `errors` points at each",
    "429": "The key sends too many requests; `Retry-After` says when to go on",
    "503": "Database, broker or store does not answer; `Retry-After` says when to retry",
}
_KEY = {"type": "http", "scheme": "bearer", "description": "An API key: `polar_…`."}
_RETRY_AFTER = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
_SCHEMA = {"$ref": "#/components/schemas/Problem"}
_OPENAI_SCHEMA = {"$ref": "#/components/schemas/ErrorAnswer"}
_WRONG = "A parameter is wrong (`param`), or this cannot be done now; `message` says the way out"


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the app."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    _add_model(schemas, Problem)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"]["securitySchemes"] = {"ApiKey": _KEY}
    _add_model(schemas, ErrorAnswer)
    for path, item in document["paths"].items():
        for operation in item.values():
            if path not in OPEN_PATHS:
                operation["security"] = [{"ApiKey": []}]
            _describe_errors(operation)
            if path.startswith(PREFIX):
                _shape_errors(operation)
    return document


def _add_model(schemas: dict[str, Any], model: type[BaseModel]) -> None:
    described = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(described.pop("$defs", {}))
    schemas[model.__name__] = described


def _shape_errors(operation: dict[str, Any]) -> None:
    """As OpenAI's clients get them: other fields, and 400 for what is 422 elsewhere."""
    answers = operation["responses"]
    answers.pop("422", None)
    answers["400"] = {"description": _WRONG}
    for status, answer in answers.items():
        if status >= "400":
            answer["content"] = {"application/json": {"schema": _OPENAI_SCHEMA}}


def _describe_errors(operation: dict[str, Any]) -> None:
    answers = operation["responses"]
    open_to_all = "security" not in operation
    wanted = {"503"} if open_to_all else {"400", "401", "403", "422", "429", "503"}
    if "requestBody" in operation:
        wanted |= {"413"}
    if any(p["in"] == "path" for p in operation.get("parameters", ())):
        wanted |= {"404"}
    for status in sorted(wanted):
        given = answers.get(status, {}).get("description", "Validation Error")
        text = _COMMON[status] if given == "Validation Error" else given
        answers[status] = {"description": text}
    for status, answer in answers.items():
        if status >= "400":
            answer["content"] = {MEDIA_TYPE: {"schema": _SCHEMA}}
        if status in ("429", "503"):
            answer["headers"] = {"Retry-After": _RETRY_AFTER}
    operation["responses"] = dict(sorted(answers.items()))


def canonical(document: dict[str, Any]) -> str:
    """Return the document as it is committed: sorted keys, two spaces, one final newline."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
