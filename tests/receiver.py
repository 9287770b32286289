"""A receiver of webhooks: a real HTTP server that answers as it is told, and keeps what it got."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Behaviour = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Got:
    """A request that arrived."""

    path: str
    headers: dict[str, str]
    body: str


def answering(status: int, **headers: str) -> Behaviour:
    """Return the behaviour of a server that answers so at once."""

    def behave(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return behave


class _Server(ThreadingHTTPServer):
    leave: threading.Event


@dataclass
class Receiver:
    """The server's port, what it got, and how it behaves: to be changed at any time."""

    port: int = 0
    behave: Behaviour = field(default_factory=lambda: answering(200))
    got: list[Got] = field(default_factory=list)
    tls: ssl.SSLContext | None = None
    """What it proves who it is with; None: it speaks plain HTTP."""
    leave: threading.Event = field(default_factory=threading.Event)
    """Set when the server is to go: behaviours that never end look at it."""

    @staticmethod
    def leave_of(handler: BaseHTTPRequestHandler) -> threading.Event:
        """Return the event of the receiver that a behaviour works for."""
        assert isinstance(handler.server, _Server)
        return handler.server.leave

    def url(self, path: str = "/hook") -> str:
        """Return the address of a path."""
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}{path}"

    @contextmanager
    def running(self) -> Iterator["Receiver"]:
        """Serve until the block ends; on the same port as the last time."""
        receiver = self
        self.leave.clear()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                receiver.got.append(Got(self.path, dict(self.headers), body))
                receiver.behave(self)

            def do_GET(self) -> None:
                receiver.got.append(Got(self.path, dict(self.headers), ""))
                receiver.behave(self)

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        server = _Server(("127.0.0.1", self.port), Handler)
        self.port = server.server_port
        server.leave = self.leave
        if self.tls is not None:
            server.socket = self.tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.leave.set()
            server.shutdown()
            server.server_close()
            thread.join()
