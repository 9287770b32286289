"""Errors that the caller must act on; they carry an HTTP status and know no web framework.

ServiceError
├── BadRequest            400  malformed beyond fields (cursor, header)
├── Unauthenticated       401  no key, or a key that is not valid
├── Forbidden             403  the key's role does not suffice
├── NotFound              404  no such thing in the caller's project
├── Conflict              409  impossible in the present state
├── TooLarge              413  above a limit
├── InvalidPayload        422  fields; `problems` has a JSON pointer for each
├── TooManyRequests       429  the key's rate is used up for the moment
└── Unavailable           503  a part of the service does not answer now
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel


class FieldProblem(BaseModel):
    """What is wrong with one field."""

    pointer: str
    message: str
    value: str | None = None


class ServiceError(Exception):
    """Base of all errors that are answered as problem+json; the message is for people."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Service error"

    def __init__(self, message: str, code: str, problems: Sequence[FieldProblem] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.problems = list(problems)


class BadRequest(ServiceError):
    """Malformed beyond fields."""

    status = 400
    title = "Bad request"


class Unauthenticated(ServiceError):
    """No API key, or one that is not valid."""

    status = 401
    title = "Not authenticated"


class Forbidden(ServiceError):
    """The key's role does not suffice."""

    status = 403
    title = "Not allowed"


class NotFound(ServiceError):
    """No such thing in the caller's project."""

    status = 404
    title = "Not found"


class Conflict(ServiceError):
    """Impossible in the present state."""

    status = 409
    title = "Conflict"


class TooLarge(ServiceError):
    """Above a limit."""

    status = 413
    title = "Too large"


class InvalidPayload(ServiceError):
    """One or more fields are wrong."""

    status = 422
    title = "Invalid payload"

    def __init__(self, problems: Sequence[FieldProblem], code: str = "invalid_payload") -> None:
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{first.pointer or '/'}: {first.message}{more}", code, problems)


class TooManyRequests(ServiceError):
    """The key's rate is used up for the moment; `seconds` from now there is a request again."""

    status = 429
    title = "Too many requests"

    def __init__(self, seconds: int) -> None:
        super().__init__(
            f"this key sends too many requests; the next one is answered in {seconds} s. To see "
            "what happens, follow the streams of events instead of asking again and again",
            "rate_limited",
        )
        self.seconds = seconds


class Unavailable(ServiceError):
    """A part of the service does not answer now."""

    status = 503
    title = "Unavailable"
