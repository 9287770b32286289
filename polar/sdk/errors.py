"""What the SDK raises, by what happened.

ClientError
├── NoService           no address of a service is known
├── Unreachable         no answer, or one that broke off
├── Unsendable          what was given fits into no request; a ValueError too
├── Waited              what was waited for did not happen in time; a TimeoutError too
├── Corrupt             a download is not what its checksum says
└── ApiError            the service refused: `status`, `code`, `message`, `problems`
    ├── BadRequest      400 and the 4xx that are not below
    ├── Unauthenticated 401
    ├── Forbidden       403
    ├── NotFound        404, 410
    ├── Conflict        409
    ├── Invalid         422: `problems` has a JSON pointer for each field
    ├── RateLimited     429
    └── ServerError     5xx
"""

from typing import Any, NamedTuple


class FieldProblem(NamedTuple):
    """What is wrong with one field."""

    pointer: str
    message: str
    value: str | None = None


class ClientError(Exception):
    """Base of all that the SDK raises."""


class NoService(ClientError):
    """There is no service to talk to; the message says how to get one."""


class Unreachable(ClientError):
    """The service did not answer, or its answer broke off.

    `sent` says whether the request may have reached it.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Unsendable(ClientError, ValueError):
    """What was given fits into no request, and was not sent; the message names it."""


class Waited(ClientError, TimeoutError):
    """What was waited for did not happen in time."""


class Corrupt(ClientError):
    """A download is not what its checksum says; nothing of it was kept."""


class ApiError(ClientError):
    """The service refused; the text says what is wrong and the way out."""

    def __init__(self, status: int, body: dict[str, Any], retry_after: float | None = None) -> None:
        self.status = status
        self.code = str(body.get("code", ""))
        self.message = str(body.get("message") or body.get("detail") or f"HTTP {status}")
        self.request_id: str | None = body.get("request_id")
        self.retry_after = retry_after
        self.problems = [_problem(each) for each in _errors(body.get("errors"))]
        lines = [f"  {each.pointer}: {each.message}" for each in self.problems]
        super().__init__("\n".join([self.message, *lines]))


class BadRequest(ApiError):
    """Malformed, or refused for a reason that has no class of its own."""


class Unauthenticated(ApiError):
    """No API key, or one that is not valid."""


class Forbidden(ApiError):
    """The key's role does not suffice."""


class NotFound(ApiError):
    """No such thing in the key's project, or it is gone."""


class Conflict(ApiError):
    """Impossible in the present state."""


class Invalid(ApiError):
    """One or more fields are wrong."""


class RateLimited(ApiError):
    """Too many requests; `retry_after` seconds from now there is one again."""


class ServerError(ApiError):
    """The service, or a part of it, does not work now."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    422: Invalid,
    429: RateLimited,
}
_LOWEST_OF_SERVER = 500


def refusal(status: int, body: Any, retry_after: str | None = None) -> ApiError:
    """Return the error that an answer with this status and body stands for."""
    kind = ServerError if status >= _LOWEST_OF_SERVER else _BY_STATUS.get(status, BadRequest)
    seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
    return kind(status, body if isinstance(body, dict) else {}, seconds)


def _errors(given: Any) -> list[dict[str, Any]]:
    """The wrong fields, where the answer is one of POLAR's and not of something before it."""
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []


def _problem(given: dict[str, Any]) -> FieldProblem:
    value = given.get("value")
    return FieldProblem(str(given.get("pointer")), str(given.get("message")), value)
