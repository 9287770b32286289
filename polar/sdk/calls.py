"""Calls without a connection: what is asked, when it is asked again, and what the answer means.

A `Call` and every longer course, such as an upload, is a generator of steps: `Send` for an answer,
`Receive` for one that goes to a sink, `Pause` for a while without any, `Work` for what must not
stop an event loop. The drivers alone know how
a step is done, one with threads and one with await.
"""

import re
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import unquote

import httpx

from polar.sdk.errors import (
    ApiError,
    ClientError,
    NoService,
    NotFound,
    RateLimited,
    ServerError,
    Unreachable,
    Unsendable,
    refusal,
)
from polar.sdk.sending import check_head, encoded, segment

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Json = dict[str, Any]

CONNECT_TIMEOUT, TIMEOUT = 5.0, 30.0  # seconds
LONG_TIMEOUT = 600.0
"""For answers that come when a file has been looked through."""

ATTEMPTS, PATIENCE = 5, 60.0  # tries of one call, and the seconds that they may take together
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
_AWAY = (502, 503, 504)
_SAFE = ("GET", "HEAD", "PUT", "DELETE")
_random = SystemRandom()


class Sink(Protocol):
    """Where the bytes of an answer go."""

    def begin(self, answer: httpx.Response) -> None:
        """Look at the head of an answer that is a success."""

    def write(self, block: bytes) -> None:
        """Take what came."""


@dataclass(frozen=True)
class Send:
    """Send the request; the step's result is the answer, read whole."""

    request: "Call[Any]"


@dataclass(frozen=True)
class Receive:
    """Send the request and give the body of a success to the sink, block by block."""

    request: "Call[Any]"
    sink: Sink


@dataclass(frozen=True)
class Pause:
    """Do nothing for a while."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """Compute something that takes its time; the step's result is what it returns."""

    compute: Callable[[], Any]


Step = Send | Receive | Pause | Work
Course = Generator[Step, Any, T]


class Steps(Protocol[T_co]):
    """What a driver can run: a call, or a generator of steps that returns something."""

    def __iter__(self) -> Generator[Step, Any, T_co]:
        """Return the steps."""


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One operation of the API: the request, and how its answer is read.

    `again` says whether a request that may have arrived can be sent once more: reads, settings of
    a value, intents, and submits with an Idempotency-Key can.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    again: bool | None = None
    timeout: float = TIMEOUT

    def __iter__(self) -> Course[T]:
        """Send it, again where that is safe and helps; raises ApiError and Unreachable."""
        answer = yield from _answered(self, Tries(again=self.may_repeat))
        try:
            return self.read(answer)
        except (ValueError, KeyError, RecursionError):
            text = f"{self.method} {self.path} is answered, but not as POLAR does: look at its URL"
            raise Unreachable(text) from None

    @property
    def may_repeat(self) -> bool:
        """Whether it may be sent once more though it may have arrived."""
        return self.method in _SAFE if self.again is None else self.again

    def arguments(self) -> dict[str, Any]:
        """Return what httpx is given; raises NoService for what leaves the service, or is no path.

        The key is for one service alone. Raises Unsendable for what no request can carry.
        """
        _check_path(self.path)
        given = {name: value for name, value in self.query.items() if value is not None}
        check_head(self.method, given, self.headers)
        kind = {} if self.json is None else {"Content-Type": "application/json"}
        return {
            "method": self.method,
            "url": self.path,
            "params": given or None,
            "headers": {**kind, **self.headers},
            "content": self.content if self.json is None else encoded(self.json),
            "timeout": httpx.Timeout(self.timeout, connect=CONNECT_TIMEOUT),
        }


def _check_path(path: str) -> None:
    try:
        whole = httpx.URL(path).is_absolute_url
    except (httpx.InvalidURL, UnicodeError) as error:
        raise NoService(f"{path!r} is no path of the API: {error}") from None
    if whole:
        raise NoService(f"{path!r} is an address: give a path of the API, such as /jobs")
    if {".", ".."} & set(unquote(path.partition("?")[0]).split("/")):
        raise NoService(f"{path!r} has the segment '.' or '..', which no path of the API has")


@dataclass
class Tries:
    """How often a request has been sent, and whether it may be sent once more."""

    again: bool
    count: int = 0
    may_be_done: bool = False
    """Whether one of them may have arrived, without an answer that says so."""
    began: float = field(default_factory=lambda: time.monotonic())

    def pause_after(self, error: ClientError) -> float:
        """Return the seconds to wait before the next try; raises the error where there is none."""
        self.count += 1
        lost = isinstance(error, Unreachable) and error.sent
        self.may_be_done |= lost or isinstance(error, ServerError)
        wait: float = min(FIRST_PAUSE * 2 ** (self.count - 1), LONGEST_PAUSE)
        wait *= _random.uniform(0.5, 1)
        if isinstance(error, ApiError) and error.retry_after is not None:
            wait = error.retry_after
        spent = time.monotonic() - self.began
        if not self._helps(error) or self.count >= ATTEMPTS or spent + wait > PATIENCE:
            raise error
        return wait

    def _helps(self, error: ClientError) -> bool:
        if isinstance(error, Unreachable):
            return self.again or not error.sent
        if not isinstance(error, ApiError):
            return False
        if isinstance(error, RateLimited):  # nothing was done
            return True
        # `in_flight`: the first try is still being answered
        return self.again and (error.status in _AWAY or error.code == "in_flight")


def _answered(call: Call[Any], tries: Tries) -> Course[httpx.Response]:
    while True:
        try:
            answer: httpx.Response = yield Send(call)
            check(answer)
        except NotFound:
            if call.method == "DELETE" and tries.may_be_done:
                return answer  # the try whose answer was lost has deleted it
            raise
        except (Unreachable, ApiError) as error:
            wait = tries.pause_after(error)
        else:
            return answer
        yield Pause(wait)


def check(answer: httpx.Response) -> None:
    """Raise the ApiError of an answer, read already, that is no success."""
    if answer.is_success:
        return
    try:
        body = answer.json()
    except ValueError:
        body = {}
    raise refusal(answer.status_code, body, answer.headers.get("Retry-After"))


def shown(url: str) -> str:
    """Return an address as it may be printed: without a user's name and password."""
    return re.sub(r"//.*@", "//", url)


def unreachable(url: str, error: httpx.RequestError) -> ClientError:
    """Return what a failure of the connection means."""
    if isinstance(error, httpx.LocalProtocolError):  # its text quotes headers, the key's too
        return Unsendable(f"{url}: the request cannot be sent as it is")
    unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
    return Unreachable(f"no answer from {url}: {error}", sent=not unsent)


def part(text: str | int) -> str:
    """Return a value as one segment of a path."""
    return segment(str(text))


def path_of(text: str) -> str:
    """Return a file's path as segments of a path."""
    return segment(text, safe="/")


def decoded(answer: httpx.Response) -> Any:
    """Return the JSON of an answer; None without any."""
    return answer.json() if answer.content else None


def nothing(answer: httpx.Response) -> None:
    """Take an answer without content; raises ValueError for a success that has one: a page, say."""
    if answer.is_success and answer.content:
        raise ValueError("an answer without content was expected")


def text_of(answer: httpx.Response) -> str:
    """Return the text of an answer."""
    return answer.text
