"""Downloads: one stored file with ranges and checksums, or many as one tar stream."""

import re
import tarfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from app import problem
from app.journal import request_id
from app.settings import get_settings
from app.storage import Store, StoreUnavailable, content_disposition

LINK_SECONDS = 900
_RANGE = re.compile(r"^bytes=(\d{0,18})-(\d{0,18})$")
_BLOCK = 512


@dataclass(frozen=True)
class StoredFile:
    """A file in the store; `path` is its name for people, `key` its object."""

    path: str
    key: str
    size: int
    sha256: str
    created_at: datetime

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]


def send_file(request: Request, store: Store, file: StoredFile, *, redirect: bool) -> Response:
    """Answer a GET or HEAD with the file, a part of it, 304, 416, or a link to the store.

    Raises ObjectMissing and StoreUnavailable before anything is sent.
    """
    if redirect and get_settings().s3_public_endpoint:
        link = store.presign_get(file.key, LINK_SECONDS, file.name)
        return RedirectResponse(link, 307, headers={"Cache-Control": "no-store"})
    info = store.info(file.key)
    if info.size != file.size:
        raise StoreUnavailable(f"{file.path} has {info.size} bytes in the store, not {file.size}")
    headers = _headers(file)
    if request.headers.get("if-none-match") in ("*", headers["ETag"]):
        return Response(status_code=304, headers={"ETag": headers["ETag"]})
    span = _span(request, file)
    if span is None:
        return _not_satisfiable(file)
    start, end = span
    headers["Content-Length"] = str(end - start)
    status = 200
    if (start, end) != (0, file.size):
        status, headers["Content-Range"] = 206, f"bytes {start}-{end - 1}/{file.size}"
    media_type = "application/octet-stream"
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=media_type)
    body = store.iterate(info, start, end)
    return StreamingResponse(body, status, headers, media_type)


def _headers(file: StoredFile) -> dict[str, str]:
    digest = b64encode(bytes.fromhex(file.sha256)).decode()
    return {
        "Accept-Ranges": "bytes",
        "ETag": f'"{file.sha256}"',
        "Repr-Digest": f"sha-256=:{digest}:",
        "Content-Disposition": content_disposition(file.name),
        "Cache-Control": "private, no-cache",
    }


def _span(request: Request, file: StoredFile) -> tuple[int, int] | None:
    """Return the wanted bytes (start, end); the whole file for no or several ranges; None: 416."""
    whole = (0, file.size)
    match = _RANGE.match(request.headers.get("range", ""))
    if match is None or request.headers.get("if-range", f'"{file.sha256}"') != f'"{file.sha256}"':
        return whole
    first, last = match.groups()
    if not first and not last:
        return whole
    if not first:
        start, end = max(0, file.size - int(last)), file.size
    else:
        start, end = int(first), min(int(last) + 1 if last else file.size, file.size)
    if last and first and int(last) < int(first):
        return whole
    return (start, end) if start < end else None


def _not_satisfiable(file: StoredFile) -> Response:
    message = f"the file has {file.size} bytes: the range begins behind its end"
    document = problem.problem(416, "Range not satisfiable", "invalid_range", message)
    return Response(
        problem.encoded(document, request_id.get()),
        status_code=416,
        media_type=problem.MEDIA_TYPE,
        headers={"Content-Range": f"bytes */{file.size}"},
    )


def send_archive(store: Store, files: Sequence[StoredFile], name: str) -> Response:
    """Answer with a tar stream of the files; a file that cannot be read breaks the download off.

    Raises ObjectMissing before anything is sent when the first file is gone.
    """
    store.info(files[0].key)
    size = sum(len(_tar_header(f)) + f.size + _padding(f.size) for f in files) + 2 * _BLOCK
    headers = {"Content-Length": str(size), "Content-Disposition": content_disposition(name)}
    return StreamingResponse(_tar(store, files), 200, headers, "application/x-tar")


def _tar(store: Store, files: Sequence[StoredFile]) -> Iterator[bytes]:
    for file in files:
        yield _tar_header(file)
        yield from store.iterate(file.key)
        yield bytes(_padding(file.size))
    yield bytes(2 * _BLOCK)


def _tar_header(file: StoredFile) -> bytes:
    info = tarfile.TarInfo(file.path)
    info.size, info.mode, info.mtime = file.size, 0o644, int(file.created_at.timestamp())
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> int:
    return -size % _BLOCK
