"""One call of a webhook's address: bounded in time and bytes, whatever answers."""

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult

from app.webhooks.address import Unresolved, addresses, port_of, split
from trainer_core.outbound import Refused

PATIENCE = 10.0
"""Seconds from the first byte that is sent to the answer's status line and headers."""


@dataclass(frozen=True)
class Answer:
    """What came of a call: a status, or else why there is none."""

    status: int | None = None
    error: str | None = None


def post(url: str, headers: Mapping[str, str], body: bytes, patience: float = PATIENCE) -> Answer:
    """Send `body` and return the status of the answer, of which nothing else is read.

    Redirects are not followed, and proxies not asked. Nothing that the other side does raises.
    """
    try:
        parts = split(url)
        with _connected(parts, patience) as connection, _at_most(patience, connection) as late:
            answer = _tried(parts, connection, headers, body)
            # A head that was broken off reads like one that has ended.
            return Answer(error=f"no answer within {patience:g} s") if late.is_set() else answer
    except Refused as error:
        return Answer(error=str(error.strerror))
    except (OSError, ValueError) as error:
        return Answer(error=_said(error))


def _tried(
    parts: SplitResult, connection: socket.socket, headers: Mapping[str, str], body: bytes
) -> Answer:
    try:
        return _exchange(parts, connection, headers, body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(error=_said(error))


def _said(error: Exception) -> str:
    if isinstance(error, Unresolved):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no connection: it took too long"
    return f"{type(error).__name__}: {error}"[:500]


@contextmanager
def _connected(parts: SplitResult, patience: float) -> Iterator[socket.socket]:
    """A connection to the first address that answers; names are resolved here once and for all."""
    hosts = addresses(parts)
    connection = _first(hosts, port_of(parts), patience)
    connection.settimeout(2 * patience)  # only if `_at_most` were late
    if parts.scheme == "https":
        connection = _tls().wrap_socket(
            connection, server_hostname=parts.hostname, do_handshake_on_connect=False
        )
    with connection:
        yield connection


def _first(hosts: list[str], port: int, patience: float) -> socket.socket:
    for host in hosts[:-1]:
        try:
            return socket.create_connection((host, port), patience / len(hosts))
        except OSError:
            continue
    return socket.create_connection((hosts[-1], port), patience / len(hosts))


@lru_cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@contextmanager
def _at_most(seconds: float, connection: socket.socket) -> Iterator[threading.Event]:
    """End the connection after so long: a limit on each read would let drops fall for ever."""
    late = threading.Event()

    def end() -> None:
        late.set()
        try:
            # Not the TLS socket's own: that one would pull the session from under its reader.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
        except OSError:
            return  # it has ended by itself

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _exchange(
    parts: SplitResult, connection: socket.socket, headers: Mapping[str, str], body: bytes
) -> Answer:
    if isinstance(connection, ssl.SSLSocket):
        connection.do_handshake()
        client: http.client.HTTPConnection = http.client.HTTPSConnection(
            str(parts.hostname), port_of(parts)
        )
    else:
        client = http.client.HTTPConnection(str(parts.hostname), port_of(parts))
    client.sock = connection
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    client.request("POST", path, body, {**headers, "Connection": "close"})
    return Answer(client.getresponse().status)
