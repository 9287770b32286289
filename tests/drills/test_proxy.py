"""The proxy of the drills does to connections what it says."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.drills.proxy import Proxy


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back what it gets, upper-cased."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(ConnectionResetError):
            while data := client.recv(100):
                client.sendall(data.upper())

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[:2]
    server.close()


@pytest.fixture
def proxy(echo: tuple[str, int]) -> Iterator[Proxy]:
    with Proxy(lambda: echo, latency=0.1) as proxy:
        yield proxy


def client_of(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def ask(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return client.recv(100)


def test_it_passes_on_and_ends_when_a_side_ends(proxy: Proxy):
    with client_of(proxy) as client:
        assert ask(client, b"one") == b"ONE"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""


def test_slow_delays_both_ways(proxy: Proxy):
    with client_of(proxy) as client, proxy.toxic("slow"):
        began = time.monotonic()
        assert ask(client, b"one") == b"ONE"
        assert time.monotonic() - began >= 2 * proxy.latency


def test_cut_resets_old_and_new_connections(proxy: Proxy):
    with client_of(proxy) as client:
        assert ask(client, b"one") == b"ONE"
        with proxy.toxic("cut"):
            with pytest.raises(ConnectionResetError):
                client.recv(100)
            with pytest.raises(ConnectionResetError), client_of(proxy) as new:
                ask(new, b"two")
        with client_of(proxy) as again:
            assert ask(again, b"three") == b"THREE"


def test_half_open_says_nothing_until_it_is_over(proxy: Proxy):
    with client_of(proxy) as client, client_of(proxy) as idle:
        assert ask(client, b"one") == b"ONE"
        assert ask(idle, b"one") == b"ONE"
        client.settimeout(0.3)
        with proxy.toxic("half_open"), pytest.raises(TimeoutError):
            ask(client, b"two")
        with pytest.raises(ConnectionResetError):
            client.recv(100)
        assert ask(idle, b"three") == b"THREE"  # nothing of it was lost


def test_reset_is_over_at_once(proxy: Proxy):
    with client_of(proxy) as client:
        assert ask(client, b"one") == b"ONE"
        proxy.begin("reset")
        with pytest.raises(ConnectionResetError):
            client.recv(100)
    with client_of(proxy) as again:
        assert ask(again, b"two") == b"TWO"
