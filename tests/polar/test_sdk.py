"""The SDK against a real server on a socket: resuming streams, errors, whole downloads."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from polar.client import ApiError, Client, Unreachable
from polar.manifest import Mismatch, verify
from polar.sse import Frame, frames, lines_of
from polar.stack.ports import free_ports


class Service(BaseHTTPRequestHandler):
    """Sends five events, and breaks each stream off after two, in the middle of a frame."""

    asked: ClassVar[list[str]] = []
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        if self.path == "/jobs/missing":
            self.answer(404, {"message": "no such job", "errors": []})
        elif self.path.endswith("/events"):
            self.stream(int(self.headers["Last-Event-ID"]))
        else:
            self.send_response(200)
            self.send_header("Content-Length", "10")
            self.end_headers()
            self.wfile.write(b"half")

    def stream(self, after: int) -> None:
        self.asked.append(str(after))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"retry: 1000\n\n: heartbeat\n\n")
        for number in range(after + 1, min(after + 3, 6)):
            body = {"seq": number, "type": "log", "data": {"message": f"line {number}"}}
            self.wfile.write(f"id: {number}\ndata: {json.dumps(body)}\n\n".encode())
        if after + 3 > 5:
            self.wfile.write(b'data: {"type":"end","status":"succeeded","last_seq":5}\n\n')
        else:
            self.wfile.write(b'id: 99\ndata: {"type":')

    def answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def serving(handler: type[Service]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def service() -> Iterator[str]:
    Service.asked.clear()
    with serving(Service) as url:
        yield url


def test_a_broken_stream_goes_on_where_it_broke(service: str) -> None:
    with Client(service) as client:
        seen = list(client.events("job"))
    assert [frame.id for frame in seen] == [1, 2, 3, 4, 5, None]
    assert Service.asked == ["0", "2", "4"]
    assert seen[-1].body == {"type": "end", "status": "succeeded", "last_seq": 5}


class Quiet(Service):
    """Sends heartbeats alone for hours, is away once, and then has the end."""

    hours: ClassVar[list[int]] = []

    def stream(self, after: int) -> None:
        self.hours.append(after)
        if len(self.hours) == 2:
            self.answer(503, {"message": "starting", "errors": []})
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b": heartbeat\n\n")
        if len(self.hours) == 3:
            self.wfile.write(b'data: {"type":"end","status":"succeeded","last_seq":0}\n\n')


def test_hours_of_heartbeats_use_no_patience_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock goes on by an hour with each request that the service hears.
    clock = SimpleNamespace(monotonic=lambda: 3600.0 * len(Quiet.hours), sleep=lambda _: None)
    monkeypatch.setattr("polar.client.time", clock)
    Quiet.hours.clear()
    with serving(Quiet) as url, Client(url) as client:
        [end] = client.events("job", patience=3700)
    assert (end.type, len(Quiet.hours)) == ("end", 3)


def test_refusals_carry_their_message(service: str) -> None:
    with Client(service) as client, pytest.raises(ApiError, match="no such job") as caught:
        client.get("missing")
    assert caught.value.status == 404


def test_a_cut_download_leaves_no_file(service: str, tmp_path: Path) -> None:
    with Client(service) as client, pytest.raises(Unreachable, match="broke off"):
        client.download("job", "model/weights", tmp_path / "weights")
    assert list(tmp_path.iterdir()) == []


def test_nobody_there_is_said_after_the_patience() -> None:
    with Client(f"http://127.0.0.1:{free_ports(1)[0]}") as client:
        with pytest.raises(Unreachable, match="no answer from"):
            client.get("job")
        with pytest.raises(Unreachable, match="for 0 s"):
            list(client.events("job", patience=0))


def test_frames_are_read_as_the_standard_says() -> None:
    lines = [
        "id: 7",
        'data: {"type":',
        'data: "log"}',
        "",
        ": comment",
        "",
        'data: {"type": "cut"}',
    ]
    assert list(frames(lines)) == [Frame(7, {"type": "log"})]


def test_a_manifest_is_checked_to_the_byte(tmp_path: Path) -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256 of nothing
    listed = {"files": [{"path": "a", "size": 0, "sha256": empty}]}
    (tmp_path / "manifest.json").write_text(json.dumps(listed))
    with pytest.raises(Mismatch, match="a is in the manifest and was not published"):
        verify(tmp_path)
    (tmp_path / "a").touch()
    assert verify(tmp_path) == 1
    (tmp_path / "a").write_text("x")
    with pytest.raises(Mismatch, match="a differs"):
        verify(tmp_path)


def test_a_line_ends_at_a_line_feed_and_nowhere_else() -> None:
    text = 'id: 1\r\ndata: {"a": "x\u2028y\x85z"}\n\nid: 2\ncut'
    pieces = [text[:9], text[9:20], text[20:]]
    assert list(lines_of(pieces)) == ["id: 1", 'data: {"a": "x\u2028y\x85z"}', "", "id: 2"]
    [frame] = frames(lines_of(pieces))
    assert frame.body == {"a": "x\u2028y\x85z"}
