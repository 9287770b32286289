"""A stream of events over all its connections: where it stands, and when it is given up."""

import time
from collections.abc import Iterator

import httpx

from polar.sdk.calls import Call, check, nothing
from polar.sdk.errors import ApiError, ClientError, RateLimited, ServerError, Unreachable
from polar.sse import Decoder, Frame

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
STREAM_TIMEOUT = 45.0  # heartbeats come every 15 s
PATIENCE = 120.0
_STREAM = "text/event-stream"


def _may_pass(error: ClientError) -> bool:
    """Say whether the next connection may be better."""
    passing = isinstance(error, (Unreachable, ServerError, RateLimited))
    return passing and not isinstance(error, _NoEvents)


class _NoEvents(Unreachable):
    """What came is none of POLAR's events, and will be none next time."""


class Listener:
    """How far a stream has been read; knows no connection.

    `ordered` ids are a job's numbers: what comes twice is passed over. Others are opaque.
    """

    def __init__(
        self,
        path: str,
        *,
        after: str | None,
        types: str | None = None,
        patience: float = PATIENCE,
        ordered: bool = True,
    ) -> None:
        self.after, self.patience, self.ended = after, patience, False
        self._path, self._types, self._ordered = path, types, ordered
        self._pause, self._heard = FIRST_PAUSE, time.monotonic()
        self._decoder = Decoder()

    def request(self) -> Call[None]:
        """Return what to ask now: all that follows the last event that was seen."""
        self._decoder = Decoder()
        headers = {"Accept": _STREAM}
        if self.after is not None:
            headers["Last-Event-ID"] = self.after
        return Call(
            method="GET",
            path=self._path,
            query={"types": self._types},
            headers=headers,
            timeout=STREAM_TIMEOUT,
            read=nothing,
        )

    def opened(self, answer: httpx.Response) -> None:
        """Look at the head of an answer; raises ApiError, and Unreachable for another's page."""
        check(answer)
        kind = answer.headers.get("Content-Type", "without a type")
        if kind.partition(";")[0].strip().lower() != _STREAM:
            raise Unreachable(f"GET {self._path} is answered, but not by events ({kind})")

    def take(self, text: str) -> Iterator[Frame]:
        """Yield the frames that a piece of the stream completes, up to the last of all."""
        self._pause, self._heard = FIRST_PAUSE, time.monotonic()
        for frame in self._new(text):
            self.after = self.after if frame.id is None else frame.id
            self.ended = frame.type == "end"
            yield frame
            self._heard = time.monotonic()  # the reader's own time is no silence of the service
            if self.ended:
                return
        if self.after is None:  # where the stream began, if nothing has happened yet
            self.after = self._decoder.newest

    def _new(self, text: str) -> Iterator[Frame]:
        try:
            for frame in self._decoder.feed(text):
                if not self._is_known(frame):
                    yield frame
        except (ValueError, RecursionError) as error:
            told = f"GET {self._path} is answered, but not by POLAR's events: {error}"
            raise _NoEvents(told) from None

    def _is_known(self, frame: Frame) -> bool:
        if not self._ordered:
            return frame.type == "heartbeat"
        # a job's stream goes on by itself after `resync`: nothing of it is lost
        if frame.type in ("heartbeat", "resync"):
            return True
        return frame.id is not None and int(frame.id) <= int(self.after or 0)

    def pause_after(self, error: ClientError | None) -> float:
        """Return the seconds before the next connection; raises what no patience helps against."""
        if error is not None and not _may_pass(error):
            raise error
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
        if isinstance(error, ApiError) and error.retry_after is not None:
            pause = max(pause, error.retry_after)
        silent = time.monotonic() - self._heard
        if silent > self.patience or pause > max(LONGEST_PAUSE, self.patience):
            told = error or f"GET {self._path} ends again and again without an event"
            raise Unreachable(f"{told} (for {silent:.0f} s)") from error
        return pause
