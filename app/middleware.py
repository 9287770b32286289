"""What happens around every request: its id, access log, size limit, key check, last catch."""

import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from app import activity, problem
from app.auth import OPEN_PATHS, Caller
from app.doors.door import Door
from app.errors import ServiceError, TooLarge, TooManyRequests, Unauthenticated
from app.ids import new_id
from app.journal import request_id as current_request_id
from app.ratelimit import RateLimit
from app.telemetry import LATENCY

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Shape = Callable[[Scope, Send], Send]

MAX_BODY = 1024 * 1024
_REQUEST_ID = re.compile(r"^[A-Za-z0-9._-]{1,128}$")
_UPLOAD = re.compile(r"^POST /datasets(/.*)?$|^POST /v1/files$|^PATCH /uploads/")
# What a route says itself stays.
_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_access = logging.getLogger("app.access")
_log = logging.getLogger(__name__)


async def _answer(send: Send, document: problem.Problem, headers: dict[str, str]) -> None:
    body = problem.encoded(document, current_request_id.get())
    all_headers = {
        "Content-Type": problem.MEDIA_TYPE,
        "Content-Length": str(len(body)),
        **(problem.RETRY_AFTER if document.status == 503 else {}),
        **headers,
    }
    raw = [(name.lower().encode(), value.encode()) for name, value in all_headers.items()]
    await send({"type": "http.response.start", "status": document.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


class RequestContext:
    """Outermost: gives the request its id, logs it once, and turns what nobody caught into 500.

    `shaped` has the last word on how errors look to those who speak another dialect.
    """

    def __init__(self, app: App, *, shaped: Shape = lambda _, send: send) -> None:
        self.app = app
        self.shaped = shaped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        identity = given if _REQUEST_ID.match(given) else new_id("req")
        token = current_request_id.set(identity)
        exchange = _Exchange(send, identity)
        began = time.perf_counter()
        try:
            await self.app(scope, receive, self.shaped(scope, exchange.send))
        except Exception:  # noqa: BLE001 - the API process's one broad except
            _log.exception("uncaught error in %s %s", scope["method"], scope["path"])
            await exchange.fail(self.shaped(scope, exchange.send))
        finally:
            activity.answered()
            _log_access(scope, exchange.status, time.perf_counter() - began)
            current_request_id.reset(token)


class _Exchange:
    """One response on its way out; remembers the status and adds the common headers."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status = 0

    async def send(self, message: Message) -> None:
        """Pass a message on; the first one gets the request id and the security headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self._request_id.encode())]
            given = {name for name, _ in headers}
            headers += [pair for pair in _SECURITY_HEADERS if pair[0] not in given]
            message["headers"] = headers
        await self._send(message)

    async def fail(self, send: Send) -> None:
        """Answer 500, if nothing was answered yet; else the connection just breaks off."""
        if self.status:
            return
        message = f"something went wrong on our side; it is logged as request {self._request_id}"
        document = problem.problem(500, "Internal error", "internal", message)
        await _answer(send, document, {})


def _log_access(scope: Scope, status: int, seconds: float) -> None:
    route = getattr(scope.get("route"), "path", "unmatched")
    LATENCY.labels(scope["method"], route, str(status)).observe(seconds)
    caller: Caller | None = scope.get("state", {}).get("caller")
    fields = {
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "duration_ms": round(seconds * 1000, 2),
        "client": (scope.get("client") or ["?"])[0],
        "key": caller.key_id if caller else None,
        "user": caller.user if caller else None,
        "project": caller.project_id if caller else None,
    }
    _access.info("request", extra={"fields": fields})


class BodyLimit:
    """Refuses bodies above 1 MiB; uploads of data sets have a limit of their own."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or _is_upload(scope):
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and int(length) > MAX_BODY:
            await _answer(send, problem.of_service_error(_too_large()), {"Connection": "close"})
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY:
                raise HTTPException(413, str(_too_large()))
            return message

        await self.app(scope, limited, send)


def _is_upload(scope: Scope) -> bool:
    media_type = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    is_json = media_type == "application/json"
    return bool(_UPLOAD.match(f"{scope['method']} {scope['path']}")) and not is_json


def _too_large() -> TooLarge:
    return TooLarge(
        f"the body is larger than {MAX_BODY // 1024} KiB; data goes to POST /datasets", "too_large"
    )


class KeyCheck:
    """Puts the caller into the request's state, or answers 401 before anything else is looked at.

    Without a door everybody is let in.
    """

    def __init__(self, app: App, *, door: Door | None, limit: RateLimit | None = None) -> None:
        self.app = app
        self.door = door
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        if self.door is None:
            state["caller"] = Caller.anonymous()
        elif scope["path"] not in OPEN_PATHS:
            try:
                state["caller"] = await self._admitted(self.door, scope)
            except ServiceError as error:
                await _answer(send, problem.of_service_error(error), _way_out(error))
                return
            except problem.OUTAGES as error:
                _log.warning("no key check: %s", error)
                await _answer(send, problem.of_outage(error), {})
                return
        await self.app(scope, receive, send)

    async def _admitted(self, door: Door, scope: Scope) -> Caller:
        """The caller; raises Unauthenticated, Forbidden, TooManyRequests and outages."""
        caller = await door.caller(scope)
        if self.limit is not None and caller.budget is not None:
            wait = await self.limit.wait_of(caller.budget)
            if wait:
                raise TooManyRequests(math.ceil(wait))
        return caller


def _way_out(error: ServiceError) -> dict[str, str]:
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(error.seconds)}
    if not isinstance(error, Unauthenticated):
        return {}
    return {"WWW-Authenticate": 'Bearer realm="polar"'}
