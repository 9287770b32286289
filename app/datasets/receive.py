"""Takes an upload off the wire into a private temporary file, hashing and limiting it."""

import errno
import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyio import to_thread
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from app.errors import BadRequest, FieldProblem, InvalidPayload, TooLarge, Unavailable

_WRITE = 1 << 20
_FIELD_LIMIT = 4096
FIELDS = ("file", "name", "sha256")


@dataclass
class Received:
    """An upload that has arrived whole; `fields` are those of its form, out of `allowed`."""

    path: Path
    size: int = 0
    sha256: str = ""
    file_name: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    allowed: Sequence[str] = FIELDS


class _Sink:
    """The temporary file being written: blocks of about 1 MiB, in a thread."""

    def __init__(self, path: Path, limit: int) -> None:
        self.size = 0
        self._digest = hashlib.sha256()
        self._limit = limit
        self._blocks: list[bytes] = []
        self._waiting = 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)

    def put(self, block: bytes) -> None:
        """Take a block; raises TooLarge above the limit."""
        self.size += len(block)
        if self.size > self._limit:
            raise too_large(self._limit)
        self._blocks.append(block)
        self._waiting += len(block)

    async def flush(self, *, least: int = _WRITE) -> None:
        """Write what waits, if it is enough to be worth it."""
        if self._waiting >= max(least, 1):
            block, self._blocks, self._waiting = b"".join(self._blocks), [], 0
            await to_thread.run_sync(self._write, block)

    def _write(self, block: bytes) -> None:
        self._digest.update(block)
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]

    async def finish(self) -> str:
        """Write the rest; return the sha256."""
        await self.flush(least=0)
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def too_large(limit: int) -> TooLarge:
    """Return the error for an upload above the limit."""
    return TooLarge(
        f"an upload has at most {limit} bytes (POLAR_UPLOAD_MAX_BYTES): put the data into the "
        "object store and register its s3:// address instead",
        "upload_too_large",
    )


async def receive(
    request: Request, path: Path, limit: int, fields: Sequence[str] = FIELDS
) -> Received:
    """Write the upload to `path`; raises BadRequest, TooLarge, and Unavailable for a full disk.

    A form has these fields alone, of which `file` is the file; InvalidPayload names another one.
    """
    _check_room(request, path, limit)
    content_type, options = parse_options_header(request.headers.get("content-type"))
    received = Received(path, allowed=fields)
    sink = _Sink(path, limit)
    try:
        if content_type == b"multipart/form-data":
            await _receive_form(request, sink, received, options.get(b"boundary", b""))
        else:
            await _receive_raw(request, sink)
        received.sha256, received.size = await sink.finish(), sink.size
    except ClientDisconnect as error:
        raise BadRequest("the upload broke off before its end: send it again", "broken_off") from (
            error
        )
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _disk_full() from error
    finally:
        sink.close()
    return received


def _check_room(request: Request, path: Path, limit: int) -> None:
    length = request.headers.get("content-length", "0")
    expected = int(length) if length.isascii() and length.isdigit() else 0
    if expected > limit + _FIELD_LIMIT * 16:  # a form is a little larger than its file
        raise too_large(limit)
    require_room(path.parent, expected)


def require_room(folder: Path, needed: int) -> None:
    """Raise Unavailable unless so many bytes are free at `folder`."""
    if needed > shutil.disk_usage(folder).free:
        raise _disk_full()


def _disk_full() -> Unavailable:
    return Unavailable(
        "the disk of the service has no room for this upload: its operator must free some, or "
        "register an s3:// address instead",
        "disk_full",
    )


async def _receive_raw(request: Request, sink: _Sink) -> None:
    async for chunk in request.stream():
        sink.put(chunk)
        await sink.flush()


async def _receive_form(request: Request, sink: _Sink, received: Received, boundary: bytes) -> None:
    form = _Form(sink, received)
    try:
        parser = MultipartParser(boundary, form.callbacks())
        async for chunk in request.stream():
            parser.write(chunk)
            await sink.flush()
        parser.finalize()
    except FormParserError as error:
        raise BadRequest(f"the form is malformed: {error}", "malformed_form") from error
    if not form.ended:
        raise BadRequest("the form ends before its last boundary", "malformed_form")


class _Form:
    """Follows the parser through the parts of a form: small fields, and one file."""

    def __init__(self, sink: _Sink, received: Received) -> None:
        self.ended = False
        self._sink = sink
        self._received = received
        self._header = [b"", b""]
        self._disposition = b""
        self._name = ""
        self._value = b""
        self._is_file = False

    def callbacks(self) -> Any:
        """Return the parser's callbacks."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._add_header(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._add_header(1, data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._start,
            "on_part_data": lambda data, start, end: self._add(data[start:end]),
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._header, self._disposition, self._value = [b"", b""], b"", b""

    def _add_header(self, which: int, data: bytes) -> None:
        self._header[which] += data

    def _end_header(self) -> None:
        if self._header[0].lower() == b"content-disposition":
            self._disposition = self._header[1]
        self._header = [b"", b""]

    def _start(self) -> None:
        _, options = parse_options_header(self._disposition.decode("latin-1"))
        self._name = _text(options.get(b"name", b""), "a field's name")
        self._is_file = self._name == "file"
        allowed = self._received.allowed
        if self._name not in allowed:
            message = f"a form has the fields {', '.join(allowed)}; {self._name[:60]!r} is none"
            raise _wrong(self._name[:60], message, "unknown_field")
        if self._is_file and b"filename" not in options:
            raise _wrong("file", "send the file with its file name", "no_file_name")
        if self._is_file and self._received.file_name is not None:
            raise _wrong("file", "a form holds one file: send others by themselves", "two_files")
        if self._is_file:
            self._received.file_name = _text(options[b"filename"], "the file's name")

    def _add(self, data: bytes) -> None:
        if self._is_file:
            self._sink.put(data)
            return
        self._value += data
        if len(self._value) > _FIELD_LIMIT:
            raise BadRequest(f"the field {self._name[:60]!r} is too long", "malformed_form")

    def _end(self) -> None:
        if not self._is_file:
            self._received.fields[self._name] = _text(self._value, f"the field {self._name!r}")

    def _finish(self) -> None:
        self.ended = True


def _wrong(name: str, message: str, code: str) -> InvalidPayload:
    return InvalidPayload([FieldProblem(pointer=f"/{name}", message=message)], code)


def _text(value: bytes, what: str) -> str:
    # Options of a header come as latin-1 of what was sent, which is UTF-8 everywhere today.
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"{what} is not UTF-8", "malformed_form") from error
