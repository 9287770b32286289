"""The HTTP server itself, spoken to byte by byte: what no client library would send."""

import json
import socket

import pytest

from tests.app.server import Api
from tests.app.streams import append, new_job


def _exchange(api: Api, request: bytes) -> tuple[bytes, bytes]:
    """Send raw bytes; return head and body of everything that comes until the end."""
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(request)
        received = b""
        while chunk := client.recv(65536):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    return head.lower(), body


def test_http_1_0_gets_a_known_length_and_the_end_of_the_connection(api: Api) -> None:
    head, body = _exchange(api, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert head.startswith(b"http/1.1 200")
    assert b"transfer-encoding" not in head
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body)


def test_http_1_0_gets_an_answer_of_unknown_length_unframed(api: Api) -> None:
    """RFC 9112, 6.1: no chunks to a client that did not say HTTP/1.1."""
    job = new_job(api)
    append(api, job, [("log", {"level": "info", "message": f"line {n}"}) for n in range(1000)])
    path, key = f"/jobs/{job}/logs", f"Authorization: Bearer {api.key}"
    head, body = _exchange(api, f"GET {path} HTTP/1.0\r\n{key}\r\n\r\n".encode())
    assert head.startswith(b"http/1.1 200")
    assert b"transfer-encoding" not in head
    assert body.count(b"\n") == 1000
    with api.client.stream("GET", path) as answer:
        assert "content-length" not in answer.headers  # or this test shows nothing
        assert answer.read() == body


def test_what_is_not_http_is_refused_as_a_problem(api: Api) -> None:
    head, body = _exchange(api, b"NONSENSE\r\n\r\n")
    assert head.startswith(b"http/1.1 400")
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] == "malformed_http"


def test_a_head_without_an_end_is_refused(api: Api) -> None:
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX-Long: ")
        with pytest.raises(OSError, match=r"reset|pipe"):
            client.sendall(b"x" * 2**24)
    assert api.client.get("/healthz").status_code == 200


def test_pipelined_requests_and_large_bodies_are_not_counted_as_heads(api: Api) -> None:
    body = json.dumps({"name": "x" * 200_000}).encode()
    first = (
        f"POST /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    head, rest = _exchange(api, first + body + last)
    assert head.startswith(b"http/1.1 422")
    assert b"HTTP/1.1 200" in rest
