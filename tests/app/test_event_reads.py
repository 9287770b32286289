"""What one read of a client holds: XGen's keeps no part of a line, so whole frames alone."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import httptools
import pytest

from app.events.frames import END
from app.wire import cut
from tests.app.server import Api
from tests.app.streams import append, fail, new_job

# Bytes. Browsers and HTTP libraries read 64 KiB at once; with more, a reader that the machine keeps
# waiting for a tenth of a second finds whole frames too: where they are cut it does not change.
READ = 2**20
EVENTS = 4000


@contextmanager
def _opened(api: Api, job: str, segment: int | None) -> Iterator[socket.socket]:
    """A stream's connection; `segment` makes TCP cut as on an Ethernet."""
    host, port = api.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.settimeout(30)
        if segment:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
        client.connect((host, int(port)))
        lines = (
            f"GET /jobs/{job}/events HTTP/1.1",
            *(f"Host: {host}", f"Authorization: Bearer {api.key}", "Accept: text/event-stream"),
        )
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        yield client


class _Answer:
    """What a parser of HTTP gives of an answer: body without chunks, and whether it is over."""

    def __init__(self) -> None:
        self.body, self.over = b"", False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.over = True


def _bodies(client: socket.socket) -> Iterator[bytes]:
    """Yield the part of the answer's body that each read brought, as HTTP libraries do."""
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    while not answer.over:
        answer.body = b""
        raw = client.recv(READ)
        assert raw, "the connection ended before the stream"
        parser.feed_data(raw)
        yield answer.body


def _without_a_buffer(bodies: Iterator[bytes]) -> list[dict[str, object]]:
    """Read as XGen's page does: each read is split at line breaks, and nothing is kept."""
    events = []
    for body in bodies:
        for line in body.decode(errors="replace").split("\n"):
            if line.startswith("data: "):
                try:
                    events.append(json.loads(line.removeprefix("data: ")))
                except ValueError:
                    events.append({"lost": line})
    return events


@pytest.mark.usefixtures("nudges")
@pytest.mark.parametrize("segment", [None, 1460], ids=["loopback", "ethernet"])
def test_a_reader_without_a_buffer_gets_a_long_replay_whole(api: Api, segment: int | None) -> None:
    job = new_job(api)
    texts = ({"level": "info", "message": "가" * (n * 7 % 150)} for n in range(1, EVENTS))
    append(api, job, [("log", text) for text in texts])
    fail(api, job)
    with _opened(api, job, segment) as client:
        events = _without_a_buffer(_bodies(client))
    assert [event for event in events if "lost" in event] == []
    assert [event["seq"] for event in events[:-1]] == list(range(1, EVENTS + 1))
    assert events[-1] == {"type": "end", "status": "failed", "last_seq": EVENTS}


@pytest.mark.parametrize("most", [1, 2, 3, 7, 8, 9, 20, 1000])
def test_pieces_are_whole_frames_of_at_most_so_many_bytes(most: int) -> None:
    frames = [b"f" * size + END for size in (0, 1, 5, 6, 7, 30, 2, 2, 2)]
    pieces = list(cut(b"".join(frames), END, most))
    assert b"".join(pieces) == b"".join(frames)
    for piece in pieces:
        assert piece.endswith(END)
        assert len(piece) <= most or piece in frames
    for one, next_one in pairwise(pieces):
        first = next_one[: next_one.index(END) + len(END)]
        assert len(one + first) > most  # no more pieces than need be


def test_nothing_is_no_piece_and_a_frame_that_is_not_over_is_not_held_back() -> None:
    assert list(cut(b"", END, 8)) == []
    assert list(cut(b"123456789", END, 4)) == [b"123456789"]
