"""The object store: whole files, small objects, streams and signed links in one S3 bucket.

Its errors (StoreUnavailable, ObjectMissing, InvalidKey, ChecksumMismatch) are drawn in `app.s3`.
"""

import contextlib
import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from app.backups.hold import refuse_while_held
from app.multipart import PART, abort_uploads, put_parts, stale_uploads
from app.s3 import (
    MISSING,
    TAKEN,
    ChecksumMismatch,
    InvalidKey,
    ObjectMissing,
    Patience,
    StoreUnavailable,
    caused_by,
    check_sha256,
    connect,
    content_disposition,
    join_key,
    patiently,
    translated,
)
from app.s3_clock import date_of
from app.settings import Settings, get_settings

__all__ = [
    "ChecksumMismatch",
    "InvalidKey",
    "ObjectInfo",
    "ObjectMissing",
    "Patience",
    "Store",
    "StoreUnavailable",
    "content_disposition",
    "get_store",
    "join_key",
]

CHUNK = 256 * 1024
IMPATIENT = Patience()


@dataclass(frozen=True)
class ObjectInfo:
    """What the store says about an object."""

    key: str
    size: int
    etag: str
    modified: datetime | None = None


@lru_cache
def get_store() -> "Store":
    """The process's store, from its settings; connects at the first request."""
    return Store(get_settings(), may_delete=refuse_while_held)


class Store:
    """One bucket of an S3 endpoint. Safe to share between threads.

    Every method may raise StoreUnavailable. A request waits at most 5 s for a connection and 60 s
    for bytes, and is sent up to 4 times. `may_delete` is asked before anything is deleted, and
    raises StoreUnavailable when nothing may.
    """

    def __init__(
        self,
        settings: Settings,
        bucket: str | None = None,
        may_delete: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._may_delete = may_delete
        self.bucket = bucket or settings.s3_bucket
        self._clients: dict[str | None, Any] = {}
        self._lock = threading.Lock()

    def at(self, bucket: str) -> "Store":
        """Return the same store at another bucket."""
        other = Store(self._settings, bucket, self._may_delete)
        other._clients, other._lock = self._clients, self._lock
        return other

    def with_keys(self, access_key: str, secret_key: str) -> "Store":
        """Return the same store, opened with other keys."""
        keys = {"s3_access_key": access_key, "s3_secret_key": SecretStr(secret_key)}
        return Store(self._settings.model_copy(update=keys), self.bucket)

    def _client(self, endpoint: str | None = None) -> Any:
        endpoint = endpoint or self._settings.s3_endpoint
        with self._lock:
            if endpoint not in self._clients:
                self._clients[endpoint] = connect(self._settings, endpoint)
            return self._clients[endpoint]

    def _translated(self, key: str) -> contextlib.AbstractContextManager[None]:
        place = self._settings.s3_endpoint or "AWS S3"
        return translated(f"object store {place}, bucket {self.bucket!r}", key)

    def _call(self, operation: str, key: str, **arguments: Any) -> Any:
        with self._translated(key):
            call = getattr(self._client(), operation)
            return call(Bucket=self.bucket, **({"Key": key} if key else {}), **arguments)

    # -- bucket and objects ---------------------------------------------------------------------

    def now(self) -> datetime:
        """Return the store's own time, the clock of `ObjectInfo.modified`."""
        return date_of(self._call("head_bucket", ""))

    def ensure_bucket(self) -> None:
        """Create the bucket unless it is there."""
        try:
            self._call("head_bucket", "")
        except StoreUnavailable as error:
            if not caused_by(error, MISSING | {"NoSuchBucket"}):
                raise
            self._create_bucket()

    def _create_bucket(self) -> None:
        region = self._settings.s3_region
        place = {"CreateBucketConfiguration": {"LocationConstraint": region}}
        try:
            self._call("create_bucket", "", **({} if region == "us-east-1" else place))
        except StoreUnavailable as error:
            if not caused_by(error, frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists"})):
                raise

    def info(self, key: str) -> ObjectInfo:
        """Return size and etag; raises ObjectMissing."""
        answer = self._call("head_object", key)
        return ObjectInfo(key, int(answer["ContentLength"]), str(answer["ETag"]).strip('"'))

    def head(self, key: str) -> int | None:
        """Return the object's size in bytes, None when there is no such object."""
        try:
            return self.info(key).size
        except ObjectMissing:
            return None

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Write a small object; with `if_absent`, return False when it was there already."""
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        try:
            self._call("put_object", key, Body=data, **condition)
        except StoreUnavailable as error:
            if if_absent and caused_by(error, TAKEN):
                return False
            raise
        return True

    def get_bytes(self, key: str, limit: int) -> bytes:
        """Read a small object whole; raises ChecksumMismatch above `limit` bytes."""
        size = self.info(key).size
        if size > limit:
            raise ChecksumMismatch(f"{key} has {size} bytes, at most {limit} were expected")
        return b"".join(self.iterate(key))

    def delete(self, key: str) -> None:
        """Delete the object; silent when there is none."""
        self._may_delete()
        with contextlib.suppress(ObjectMissing):
            self._call("delete_object", key)

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object below the prefix, in the order of keys."""
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", "", Prefix=prefix, **token)
            for item in page.get("Contents", ()):
                etag = str(item["ETag"]).strip('"')
                yield ObjectInfo(item["Key"], int(item["Size"]), etag, item["LastModified"])
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders right below a prefix that ends in '/'."""
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", "", Prefix=prefix, Delimiter="/", **token)
            for item in page.get("CommonPrefixes", ()):
                yield item["Prefix"].removeprefix(prefix).rstrip("/")
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete_prefix(self, prefix: str) -> int:
        """Delete every object below `<project>/<…>/` and return how many there were.

        Raises InvalidKey for anything shorter or not ending with '/', so that no caller's slip
        can empty a project or the bucket.
        """
        if not prefix.endswith("/") or prefix.count("/") < 2:
            raise InvalidKey(prefix, "a prefix to delete is <project>/<something>/")
        join_key(prefix[:-1])
        keys = [item.key for item in self.list_objects(prefix)]
        self.delete_all(keys)
        return len(keys)

    def delete_all(self, keys: Sequence[str]) -> None:
        """Delete these objects; silent about those that are gone."""
        for start in range(0, len(keys), 1000):
            self._may_delete()
            batch = [{"Key": key} for key in keys[start : start + 1000]]
            answer = self._call("delete_objects", "", Delete={"Objects": batch, "Quiet": True})
            if answer.get("Errors"):
                raise StoreUnavailable(f"could not delete {answer['Errors'][0].get('Key')!r}")

    def stale_uploads(self, older: timedelta) -> list[tuple[str, str]]:
        """Return (key, upload id) of uploads in parts that began so long ago."""
        return stale_uploads(self._call, older)

    def abort_uploads(self, older: timedelta) -> int:
        """Abort uploads that a dead process left behind; returns how many."""
        return abort_uploads(self._call, older)

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the bucket, of any size."""
        with self._translated(source):
            self._client().copy({"Bucket": self.bucket, "Key": source}, self.bucket, target)

    # -- whole files ----------------------------------------------------------------------------

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        sha256: str | None = None,
        progress: Callable[[int], None] | None = None,
        patience: Patience = IMPATIENT,
    ) -> str:
        """Upload the file, hashing the very bytes that are sent; return their sha256.

        `progress` gets the bytes sent so far. The object appears whole or not at all: raises
        ChecksumMismatch when the content is not `sha256`, and OSError when it cannot be read. An
        outage of the store is waited out for `patience`; what was sent before stays sent.
        """
        size = path.stat().st_size
        report = progress or (lambda _: None)
        if size > PART:
            return put_parts(self._call, key, path, sha256, report, patience)
        data = path.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        check_sha256(str(path), found, sha256)
        patiently(lambda: self.put_bytes(key, data), patience)
        report(len(data))
        return found

    def get_file(
        self, key: str, path: Path, *, size: int | None = None, sha256: str | None = None
    ) -> str:
        """Download to `path` through a temporary file beside it; return the sha256.

        Raises ObjectMissing, and ChecksumMismatch when size or sha256 differ (`path` is untouched
        then); OSError when the disk is full.
        """
        partial = path.with_name(f".{path.name[:80]}.{secrets.token_hex(4)}.part")
        digest, received = hashlib.sha256(), 0
        try:
            with partial.open("xb") as file:
                for block in self.iterate(key):
                    file.write(block)
                    digest.update(block)
                    received += len(block)
                file.flush()
                os.fsync(file.fileno())
            if size is not None and received != size:
                raise ChecksumMismatch(f"{key} has {received} bytes, {size} were expected")
            check_sha256(key, digest.hexdigest(), sha256)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return digest.hexdigest()

    # -- streams and links ----------------------------------------------------------------------

    def iterate(
        self, known: str | ObjectInfo, start: int = 0, end: int | None = None
    ) -> Generator[bytes, None, None]:
        """Yield the bytes `start` to `end` (exclusive) of a key, at most 256 KiB at a time.

        A connection that breaks is taken up again where it broke, if the object is still the same.
        """
        info = self.info(known) if isinstance(known, str) else known
        end = info.size if end is None else min(end, info.size)
        failures = 0
        while start < end:
            before = start
            try:
                for block in self._read(info, start, end):
                    start += len(block)
                    yield block
            except StoreUnavailable:
                failures = 1 if start > before else failures + 1
                if failures > 3:
                    raise

    def _read(self, info: ObjectInfo, start: int, end: int) -> Iterator[bytes]:
        span = f"bytes={start}-{end - 1}"
        answer = self._call("get_object", info.key, Range=span, IfMatch=f'"{info.etag}"')
        body = answer["Body"]
        try:
            with self._translated(info.key):
                while block := body.read(CHUNK):
                    yield block
        finally:
            body.close()

    def presign_get(self, key: str, seconds: int = 900, file_name: str | None = None) -> str:
        """Return a link to the object at the public endpoint, valid for so many seconds."""
        parameters = {"Bucket": self.bucket, "Key": key}
        if file_name:
            parameters["ResponseContentDisposition"] = content_disposition(file_name)
        client = self._client(self._settings.s3_public_endpoint)
        with self._translated(key):
            url: str = client.generate_presigned_url(
                "get_object", Params=parameters, ExpiresIn=seconds
            )
        return url
