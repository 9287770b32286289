"""The HTTP server: uvicorn with its fast parser, the limits that it lacks, and a quick stop."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app import problem
from app.wire import Wire

MAX_HEAD = 64 * 1024  # bytes of request line and headers
WRITE_NOW = "polar.write_now"
"""In an ASGI scope: writes a piece of the answer at once, without a turn of the event loop."""
WIRE = "polar.wire"
"""In an ASGI scope: the connection's `Wire`."""
_ABORT = "polar.abort"
LEAST_RATE = 1024  # bytes a second of a body
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Server(uvicorn.Server):
    """A server whose streams end without an `end` frame at SIGTERM; clients resume elsewhere."""

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the streams, then wait for the other requests as uvicorn does."""
        self._app.state.feed.close()
        await super().shutdown(sockets)


class Protocol(HttpToolsProtocol):
    """httptools costs half of what h11 does; what h11 does better is added here.

    An answer of unknown length to HTTP/1.0 ends with the connection instead of in chunks
    (RFC 9112, section 6.1), and a head that never ends is refused. So is a client that holds its
    connection by sending next to nothing: a head must be whole within `patience` seconds, and a
    body come with `LEAST_RATE` on average over them. What the server itself does not read counts
    for nobody's slowness.
    """

    patience = 20.0
    _head: int | None = 0  # bytes of the head that is being read; None: the body is being read
    _open = False  # a request is being read
    _number = 0  # of the request that is being read, from 1
    _watched = 1  # the request whose head the timer is for
    _received = 0
    _seen = 0  # bytes received when the timer was set
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, but not for ever."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, as long as the head stays within its limit."""
        if self._head is not None:
            if self._head > MAX_HEAD:
                self.send_400_response(f"the request's head is longer than {MAX_HEAD} bytes")
                return
            self._head += len(data)
        self._received += len(data)
        super().data_received(data)
        if self._open and self._timer is None and self.parser is not None:
            self._watch()

    def _watch(self) -> None:
        self._watched, self._seen = max(self._number, 1), self._received
        self._timer = self.loop.call_later(self.patience, self._look)

    def _look(self) -> None:
        """Refuse a client that is too slow; look again later at one that is not yet done."""
        self._timer = None
        if self.transport.is_closing() or (self._number and not self._open):
            return
        if self._is_slow():
            self._refuse_slow()
        else:
            self._watch()

    def _is_slow(self) -> bool:
        cycle = self.cycle
        if self._head is not None:  # between requests, or in a head
            answering = cycle is not None and not cycle.response_complete
            return not answering and self._number in (0, self._watched)
        if self.flow.read_paused or cycle.waiting_for_100_continue:
            return False
        return self._received - self._seen < LEAST_RATE * self.patience

    def _refuse_slow(self) -> None:
        message = (
            f"the request did not come in time: its head must be whole within {self.patience:g} s, "
            f"and its body come with {LEAST_RATE} bytes a second at least"
        )
        answered = self._head is None and self.cycle.response_started
        if answered or self.pipeline:
            self.transport.close()
        else:
            self._refuse(problem.problem(408, "Request timeout", "too_slow", message))

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in the form of every other error, and close the connection."""
        self._refuse(problem.problem(400, "Bad request", "malformed_http", msg))

    def _refuse(self, document: problem.Problem) -> None:
        body = problem.encoded(document, None)
        head = (
            f"HTTP/1.1 {document.status} {document.title}\r\n"
            f"content-type: {problem.MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        """Count the head of the next request."""
        super().on_message_begin()
        self._head, self._open = 0, True
        self._number += 1

    def on_message_complete(self) -> None:
        """The request is whole."""
        super().on_message_complete()
        self._head, self._open = 0, False

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._head = None
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        scope: Any = cycle.scope
        scope[_ABORT] = cycle.transport.abort
        scope[WIRE] = wire = Wire(cycle.transport)
        if cycle.scope["http_version"] == "1.0":
            app = _until_closed(cycle, app)
        else:
            scope[WRITE_NOW] = partial(_write_now, cycle, wire)
        super()._start_asgi_task(cycle, app)


async def break_off(scope: MutableMapping[str, Any]) -> None:
    """Drop a request's connection with all that waits to be sent on it.

    An orderly close would wait for a client that takes nothing.
    """
    if abort := scope.get(_ABORT):
        abort()
        await asyncio.sleep(0)  # the server notices


def _write_now(cycle: RequestResponseCycle, wire: Wire, body: bytes) -> bool:
    """Write a piece of the answer's body; False: nothing was written, its own task is to try.

    Where nothing is in the way, `send` never gives the event loop a turn.
    """
    if not cycle.response_started or cycle.response_complete or len(body) > wire.piece:
        return False
    if cycle.flow.write_paused or cycle.disconnected:
        return False
    sending = cycle.send({"type": "http.response.body", "body": body, "more_body": True})
    try:
        sending.send(None)
    except StopIteration:
        return True
    except (OSError, RuntimeError):  # this client's alone
        return False
    raise AssertionError("send() waits although writing is not paused")


def _until_closed(cycle: RequestResponseCycle, app: App) -> App:
    """`app`, whose answer without a length goes out unframed: its end is the connection's."""

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        unframed = False

        async def send_unframed(message: Message) -> None:
            nonlocal unframed
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                unframed = b"content-length" not in names
                cycle.chunked_encoding = False if unframed else None
            elif unframed:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unframed)

    return answer
