"""Upload of a big file in parts, a few at a time, hashing the very bytes that are sent."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

from app.s3 import (
    ObjectMissing,
    Patience,
    StoreUnavailable,
    caused_by,
    check_sha256,
    patiently,
)
from app.s3_clock import date_of

PART = 8 * 2**20
MAX_PARTS = 10_000
CONCURRENT_PARTS = 3
_GONE = frozenset({"NoSuchUpload"})

Call = Callable[..., Any]
Part = dict[str, Any]


def put_parts(
    once: Call,
    key: str,
    path: Path,
    sha256: str | None,
    report: Callable[[int], None],
    patience: Patience,
) -> str:
    """Upload by `once(operation, key, **arguments)`; return the sha256 of what was sent.

    The object appears whole or not at all. Raises ChecksumMismatch when it is not `sha256`. At most
    `CONCURRENT_PARTS` parts are in memory; each waits for the store by itself, while those before
    it stay sent.
    """

    def call(operation: str, key: str, **arguments: Any) -> Any:
        return patiently(lambda: once(operation, key, **arguments), patience)

    total = path.stat().st_size
    size = max(PART, -(-total // MAX_PARTS))
    upload = call("create_multipart_upload", key)["UploadId"]

    def send(number: int, block: bytes) -> Part:
        answer = call("upload_part", key, UploadId=upload, PartNumber=number, Body=block)
        return {"ETag": answer["ETag"], "PartNumber": number}

    try:
        found, parts = _send_all(send, _blocks(path, size), report)
        check_sha256(str(path), found, sha256)
        _complete(call, key, upload, parts, total)
    except BaseException:
        with contextlib.suppress(StoreUnavailable, ObjectMissing):
            once("abort_multipart_upload", key, UploadId=upload)
        raise
    return found


def _complete(call: Call, key: str, upload: str, parts: list[Part], total: int) -> None:
    try:
        call("complete_multipart_upload", key, UploadId=upload, MultipartUpload={"Parts": parts})
    except StoreUnavailable as error:
        # Perhaps only the answer to an earlier try was lost.
        if not caused_by(error, _GONE) or _size(call, key) != total:
            raise


def _size(call: Call, key: str) -> int | None:
    try:
        return int(call("head_object", key)["ContentLength"])
    except ObjectMissing:
        return None


def abort_uploads(call: Call, older: timedelta) -> int:
    """Abort uploads that began so long ago that nobody sends them any more; returns how many."""
    stale = stale_uploads(call, older)
    for key, upload in stale:
        with contextlib.suppress(ObjectMissing):
            call("abort_multipart_upload", key, UploadId=upload)
    return len(stale)


def stale_uploads(call: Call, older: timedelta) -> list[tuple[str, str]]:
    """Return (key, upload id) of uploads that began so long ago, by the store's own clock."""
    found: list[tuple[str, str]] = []
    marker: dict[str, str] = {}
    while True:
        page = call("list_multipart_uploads", "", **marker)
        uploads = page.get("Uploads", ())
        limit = date_of(page) - older
        found += [(u["Key"], u["UploadId"]) for u in uploads if u["Initiated"] < limit]
        if not page.get("IsTruncated"):
            return found
        marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def _send_all(
    send: Callable[[int, bytes], Part], blocks: Iterator[bytes], report: Callable[[int], None]
) -> tuple[str, list[Part]]:
    digest, sent = hashlib.sha256(), 0
    pending: dict[Future[Part], int] = {}
    parts: list[Part] = []

    def collect(keep: int) -> None:
        nonlocal sent
        while len(pending) > keep:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                sent += pending.pop(future)
                parts.append(future.result())
                report(sent)

    with ThreadPoolExecutor(CONCURRENT_PARTS, thread_name_prefix="upload") as pool:
        for number, block in enumerate(blocks, start=1):
            digest.update(block)
            pending[pool.submit(send, number, block)] = len(block)
            collect(CONCURRENT_PARTS - 1)
        collect(0)
    return digest.hexdigest(), sorted(parts, key=lambda part: int(part["PartNumber"]))


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(size):
            yield block
