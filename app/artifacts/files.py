"""Downloads: one stored file with ranges and checksums, or many as one tar stream."""

import re
import tarfile
from base64 import b64encode
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import datetime

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app import problem
from app.artifacts.stream import Stream
from app.journal import request_id
from app.settings import get_settings
from app.storage import Store, StoreUnavailable, content_disposition

LINK_SECONDS = 900
MEDIA_TYPE = "application/octet-stream"
_RANGE = re.compile(r"^bytes=(\d{0,18})-(\d{0,18})$")
_TAG = re.compile(r'(W/)?"([^"]*)"')
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
    """Answer a GET or HEAD with the file, a part of it, 304, 412, 416, or a link to the store.

    Raises ObjectMissing and StoreUnavailable before anything is sent.
    """
    headers = _headers(file)
    if (refused := _precondition(request, file, headers)) is not None:
        return refused
    # A signed link is one for GET.
    if redirect and request.method == "GET" and get_settings().s3_public_endpoint:
        link = store.presign_get(file.key, LINK_SECONDS, file.name)
        digest = {"X-Checksum-Sha256": file.sha256}
        return RedirectResponse(link, 307, headers={"Cache-Control": "no-store", **digest})
    info = store.info(file.key)
    if info.size != file.size:
        raise StoreUnavailable(f"{file.path} has {info.size} bytes in the store, not {file.size}")
    span = _span(request, file)
    if span is None:
        return _not_satisfiable(file)
    start, end = span
    headers["Content-Length"] = str(end - start)
    status = 200
    if (start, end) != (0, file.size):
        status, headers["Content-Range"] = 206, f"bytes {start}-{end - 1}/{file.size}"
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=MEDIA_TYPE)
    return Stream(store.iterate(info, start, end), status, headers, MEDIA_TYPE)


def _headers(file: StoredFile) -> dict[str, str]:
    digest = b64encode(bytes.fromhex(file.sha256)).decode()
    return {
        "Accept-Ranges": "bytes",
        "ETag": f'"{file.sha256}"',
        "Repr-Digest": f"sha-256=:{digest}:",
        "X-Checksum-Sha256": file.sha256,
        "Content-Disposition": content_disposition(file.name),
        "Cache-Control": "private, no-cache",
    }


def _precondition(request: Request, file: StoredFile, headers: dict[str, str]) -> Response | None:
    """Return 412 or 304 where the request's conditions ask for it (RFC 9110, section 13)."""
    wanted = request.headers.get("if-match")
    if wanted is not None and not _names(wanted, file.sha256, weak=False):
        message = "the file is another one than If-Match names"
        document = problem.problem(412, "Precondition failed", "precondition_failed", message)
        return _respond(document, {})
    known = request.headers.get("if-none-match")
    if known is not None and _names(known, file.sha256, weak=True):
        kept = ("ETag", "Cache-Control", "Repr-Digest")
        return Response(status_code=304, headers={name: headers[name] for name in kept})
    return None


def _names(field: str, sha256: str, *, weak: bool) -> bool:
    """Say whether a list of entity tags, or `*`, names the file."""
    if field.strip() == "*":
        return True
    return any(tag == sha256 and (weak or not mark) for mark, tag in _TAG.findall(field))


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
    return _respond(document, {"Content-Range": f"bytes */{file.size}"})


def _respond(document: problem.Problem, headers: dict[str, str]) -> Response:
    content = problem.encoded(document, request_id.get())
    return Response(content, document.status, headers, problem.MEDIA_TYPE)


def send_archive(store: Store, files: Sequence[StoredFile], name: str) -> Response:
    """Answer with a tar stream of the files; a file that cannot be read breaks the download off.

    Raises ObjectMissing before anything is sent when the first file is gone.
    """
    store.info(files[0].key)
    size = sum(len(_tar_header(f)) + f.size + _padding(f.size) for f in files) + 2 * _BLOCK
    headers = {"Content-Length": str(size), "Content-Disposition": content_disposition(name)}
    return Stream(_tar(store, files), 200, headers, "application/x-tar")


def _tar(store: Store, files: Sequence[StoredFile]) -> Generator[bytes, None, None]:
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
