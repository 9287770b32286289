"""Slow-loris: clients that hold connections by sending next to nothing are let go."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.app.server import Api, running

PATIENCE = 1.0


@pytest.fixture(scope="module")
def quick(api: Api) -> Iterator[Api]:
    """An API that waits for slow clients one second instead of twenty."""
    variables = {**api.environment, "POLAR_SLOW_CLIENT": str(PATIENCE)}
    with running(variables, api.key) as started:
        yield started


@contextmanager
def connected(api: Api) -> Iterator[socket.socket]:
    place = urlsplit(api.url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client


def everything(client: socket.socket) -> bytes:
    """What the server says until it hangs up."""
    received = b""
    try:
        while part := client.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def trickle(client: socket.socket, data: bytes, pause: float = 0.1) -> bytes:
    """Send a byte at a time until the server has had enough; what it says then."""
    try:
        for number in range(len(data)):
            client.sendall(data[number : number + 1])
            client.settimeout(pause)
            try:
                if part := client.recv(65536):
                    client.settimeout(30)
                    return part + everything(client)
            except TimeoutError:
                continue
            return b""
    except (ConnectionResetError, BrokenPipeError):
        return b""
    raise AssertionError("the server took all of it")


def post(api: Api, length: int, path: str = "/jobs") -> bytes:
    media = "application/json" if path == "/jobs" else "application/octet-stream"
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        f"Content-Type: {media}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def is_refused(said: bytes) -> bool:
    head, _, body = said.partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 408") and json.loads(body)["code"] == "too_slow"


def test_a_client_that_says_nothing(quick: Api) -> None:
    with connected(quick) as client:
        assert is_refused(everything(client))


def test_a_head_that_comes_byte_by_byte(quick: Api) -> None:
    with connected(quick) as client:
        assert is_refused(trickle(client, b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"x" * 500))


def test_the_head_of_a_second_request_that_comes_byte_by_byte(quick: Api) -> None:
    with connected(quick) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while not received.endswith(b"}"):
            received += client.recv(65536)
        assert b"200 OK" in received
        assert is_refused(trickle(client, b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"x" * 500))


def test_a_body_that_comes_byte_by_byte(quick: Api) -> None:
    with connected(quick) as client:
        client.sendall(post(quick, 500_000))
        assert is_refused(trickle(client, b'{"name": "' + b"x" * 500))


def test_a_body_that_never_comes(quick: Api) -> None:
    with connected(quick) as client:
        client.sendall(post(quick, 100))
        assert is_refused(everything(client))


def test_an_upload_that_stops_leaves_nothing(quick: Api) -> None:
    with connected(quick) as client:
        client.sendall(post(quick, 10**9, "/datasets?name=slow&file_name=a.jsonl"))
        client.sendall(b'{"text": "a"}\n' * 10_000)
        assert is_refused(everything(client))


def test_a_body_after_its_refusal_is_not_waited_for(quick: Api) -> None:
    """The answer has gone out already: the connection just ends."""
    with connected(quick) as client:
        client.sendall(post(quick, 10**7))
        client.settimeout(30)
        said = client.recv(65536)
        assert b"413" in said.split(b"\r\n")[0]
        assert everything(client).count(b"HTTP/1.1 408") == 0


def test_an_upload_that_is_only_slow_is_taken(quick: Api) -> None:
    """Twice the least rate, over several times the patience."""
    row = json.dumps({"text": "x" * 600}).encode() + b"\n"
    with connected(quick) as client:
        client.sendall(post(quick, len(row) * 12, "/datasets?name=steady&file_name=a.jsonl"))
        for _ in range(12):
            client.sendall(row)
            time.sleep(0.3)
        client.settimeout(30)
        assert b"201 Created" in client.recv(65536)


def test_streams_and_idle_connections_are_no_slow_clients(quick: Api) -> None:
    job = {
        "task": {"type": "sft"},
        "model": {"name_or_path": "m"},
        "data": {"train": [{"source": "hub", "path": "d"}]},
    }
    made = quick.client.post("/jobs", json=job).json()["id"]
    time.sleep(3 * PATIENCE)
    assert quick.client.get("/healthz").status_code == 200  # on the same connection
    with quick.client.stream(
        "GET", f"/jobs/{made}/events", headers={"Accept": "text/event-stream"}
    ) as stream:
        frames = stream.iter_lines()
        assert next(frames)
        time.sleep(3 * PATIENCE)
        assert quick.client.post(f"/jobs/{made}/cancel").status_code == 202
        assert any('"end"' in line for line in frames)


def test_a_client_that_waits_for_leave_to_send_is_given_it(quick: Api) -> None:
    body = b'{"name": 1}'
    head = post(quick, len(body)).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    with connected(quick) as client:
        client.sendall(head)
        assert client.recv(65536).startswith(b"HTTP/1.1 100")
        client.sendall(body)
        assert client.recv(65536).startswith(b"HTTP/1.1 422")


def test_many_slow_clients_keep_nobody_out(quick: Api) -> None:
    with connected(quick) as first:
        others = [socket.create_connection(first.getpeername()) for _ in range(300)]
        try:
            for other in others:
                other.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
            assert quick.client.get("/healthz").status_code == 200
            for other in others:
                other.settimeout(30)
                assert other.recv(100).startswith(b"HTTP/1.1 408")
        finally:
            for other in others:
                other.close()
