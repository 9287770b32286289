"""A store with an object that nobody reads to its end, and how much of it was read."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENDLESS = 1 << 40
"""Bytes of a file that nobody reads to its end: a terabyte."""
LINE = json.dumps({"text": "the parcel was fast and friendly"}).encode() + b"\n"


def span(headers: Any, size: int) -> tuple[int, int]:
    """First and last byte that a request asks for."""
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("Range", ""))
    first, last = map(int, found.groups()) if found else (0, size - 1)
    return first, min(last, size - 1)


class EndlessStore(BaseHTTPRequestHandler):
    """An S3 store with one object of a terabyte, the same line again and again."""

    protocol_version = "HTTP/1.1"
    given = 0

    def do_GET(self) -> None:
        if "list-type=2" in self.path:
            self.answer(200, LISTING.encode())
            return
        first, last = span(self.headers, ENDLESS)
        offset, length = first % len(LINE), last - first + 1
        body = (LINE * (length // len(LINE) + 2))[offset : offset + length]
        type(self).given += length
        self.answer(206, body, **{"Content-Range": f"bytes {first}-{last}/{ENDLESS}"})

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


LISTING = (
    '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "<IsTruncated>false</IsTruncated><Contents><Key>a.jsonl</Key><ETag>&quot;1&quot;</ETag>"
    f"<Size>{ENDLESS}</Size></Contents></ListBucketResult>"
)


@contextmanager
def running(kind: Any) -> Iterator[str]:
    """The address of a server of this class, which has given nothing yet."""
    kind.given = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
