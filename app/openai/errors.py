"""Every error below `/v1` as OpenAI's clients read it, whatever raised it.

The problem document of the service is written anew on its way out, so that middleware, framework
and routes need not know whom they answer.
"""

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pydantic import BaseModel, Field

from app.problem import MEDIA_TYPE

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

PREFIX = "/v1/"
_QUERY = re.compile(r"^query `?([^`: ]+)")
_CODES = {
    "no_key": "invalid_api_key",
    "invalid_key": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_AGAIN = "in_flight"
"""Clients repeat every 409 by themselves: only here does that help."""


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str = Field(examples=["there is no data set ds_01J…: GET /datasets lists them"])
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = Field(description="The wrong parameter.", examples=["training_file"])
    code: str | None = Field(examples=["invalid_payload"])


class ErrorAnswer(BaseModel):
    """Every error below `/v1`."""

    error: ErrorBody


def shaped(scope: Scope, send: Send) -> Send:
    """Return `send` for the request; at `/v1` it turns problem documents into OpenAI's."""
    return _Reply(send).send if f"{scope['path']}/".startswith(PREFIX) else send


class _Reply:
    """Holds a problem document back until it is whole; anything else passes through."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        """Pass a message on, or keep it."""
        if message["type"] == "http.response.start" and _is_problem(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        document = json.loads(self._body)
        status = status_of(document)
        body = answer_of(document).model_dump_json().encode()
        headers = [pair for pair in start["headers"] if pair[0] not in _OF_BODY]
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await self._send({**start, "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


_OF_BODY = (b"content-type", b"content-length")


def _is_problem(start: Message) -> bool:
    return (b"content-type", MEDIA_TYPE.encode()) in start.get("headers", ())


def status_of(document: dict[str, Any]) -> int:
    """Return the status that OpenAI's API has for it: 400 for wrong fields and wrong moments."""
    status: int = document["status"]
    if status == 422 or (status == 409 and document["code"] != _AGAIN):
        return 400
    return status


def answer_of(document: dict[str, Any]) -> ErrorAnswer:
    """Return a problem document in OpenAI's shape."""
    problems = document.get("errors") or []
    message = _told(problems) if problems else document["message"]
    code = document["code"]
    return ErrorAnswer(
        error=ErrorBody(
            message=message,
            type=_type_of(document["status"]),
            param=_param(problems[0]) if problems else None,
            code=_CODES.get(code, code),
        )
    )


def _type_of(status: int) -> str:
    if status >= 500:
        return "server_error"
    return _TYPES.get(status, "invalid_request_error")


def _told(problems: list[dict[str, Any]]) -> str:
    first = str(problems[0]["message"])
    return first if len(problems) == 1 else f"{first} (and {len(problems) - 1} more)"


def _param(problem: dict[str, Any]) -> str | None:
    """The parameter as people write it, `method.dpo`; a query's by its message."""
    if problem["pointer"]:
        parts = str(problem["pointer"])[1:].split("/")
        return ".".join(part.replace("~1", "/").replace("~0", "~") for part in parts)
    found = _QUERY.match(str(problem["message"]))
    return found[1] if found else None
