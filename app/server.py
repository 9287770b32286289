"""The HTTP server: uvicorn with its fast parser, the limits that it lacks, and a quick stop."""

import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app import problem

MAX_HEAD = 64 * 1024  # bytes of request line and headers
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
    (RFC 9112, section 6.1), and a head that never ends is refused.
    """

    _head: int | None = 0  # bytes of the head that is being read; None: the body is being read

    def data_received(self, data: bytes) -> None:
        """Parse what came, as long as the head stays within its limit."""
        if self._head is not None:
            if self._head > MAX_HEAD:
                self.send_400_response(f"the request's head is longer than {MAX_HEAD} bytes")
                return
            self._head += len(data)
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in the form of every other error, and close the connection."""
        body = problem.encoded(problem.problem(400, "Bad request", "malformed_http", msg), None)
        head = (
            "HTTP/1.1 400 Bad Request\r\n"
            f"content-type: {problem.MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        """Count the head of the next request."""
        super().on_message_begin()
        self._head = 0

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._head = None
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = _until_closed(cycle, app)
        super()._start_asgi_task(cycle, app)


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
