"""What S3 is to us: a connection, the errors that it answers with, and keys that stay in place.

Unavailable
└── StoreUnavailable   503  the store does not answer, or refuses us; nothing was half-written
NotFound
└── ObjectMissing      404  no such object
BadRequest
└── InvalidKey         400  a key that climbs out, or that no store could hold
OSError
└── ChecksumMismatch        the bytes are not those that the caller named by size or sha256
"""

import contextlib
import logging
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from app.errors import BadRequest, NotFound, Unavailable
from app.s3_clock import follow_the_store
from app.settings import Settings

T = TypeVar("T")
_LONGEST_PAUSE = 10.0
_log = logging.getLogger(__name__)
MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
TAKEN = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})
FULL = frozenset(
    {
        "QuotaExceeded",
        "InsufficientStorage",
        "507",
        "XMinioStorageFull",
        "XMinioAdminBucketQuotaExceeded",
    }
)
REFUSED = frozenset({"AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch"})


class StoreUnavailable(Unavailable):
    """The object store does not answer, or refuses us; trying again later is right."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "store_unavailable")


class ObjectMissing(NotFound):
    """No such object in the store."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the object store has no object {key!r}", "object_missing")


class InvalidKey(BadRequest):
    """A key or path that climbs out of its folder, or that no store could hold."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key!r} is not a valid path: {why}", "invalid_path")


class ChecksumMismatch(OSError):
    """The bytes are not those that were named."""


def join_key(*parts: str) -> str:
    """Join parts, each of one or more segments, to a key that stays below the first one.

    Raises InvalidKey for an empty, absolute or climbing part, a backslash, a control character,
    and for a key above S3's 1024 bytes.
    """
    for part in parts:
        _check_segments(part)
    key = "/".join(parts)
    if not key or len(key.encode("utf-8", "surrogatepass")) > 1024:
        raise InvalidKey(key[:80], "a key has 1 to 1024 bytes")
    return key


def _check_segments(part: str) -> None:
    if any(unicodedata.category(c) in ("Cc", "Cs") or c == "\\" for c in part):
        raise InvalidKey(part, "control characters and backslashes are refused")
    if part.startswith("/"):
        raise InvalidKey(part, "it must be relative")
    if any(segment in ("", ".", "..") for segment in part.split("/")):
        raise InvalidKey(part, "'..', '.' and empty segments are refused")


def content_disposition(file_name: str) -> str:
    """Return the header that makes a browser save the body under this name (RFC 6266)."""
    plain = "".join(
        c if c.isascii() and c.isprintable() and c not in '"\\%' else "_" for c in file_name
    )
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file_name, safe='')}"


@lru_cache
def _session() -> boto3.session.Session:
    """One for the process, and for those that are forked from it: it keeps the parsed models."""
    return boto3.session.Session()


def connect(settings: Settings, endpoint: str | None) -> Any:
    """Return a boto3 client; requests wait 5 s to connect, 60 s for bytes, and are sent 4 times."""
    client = _session().client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=settings.s3_access_key or None,
        aws_secret_access_key=settings.s3_secret_key.get_secret_value() or None,
        region_name=settings.s3_region,
        config=Config(
            connect_timeout=5,
            read_timeout=60,
            retries={"mode": "standard", "total_max_attempts": 4},
            signature_version="s3v4",
            max_pool_connections=32,
            s3={"addressing_style": "path" if endpoint else "auto"},
        ),
    )
    follow_the_store(client)
    return client


def _code(error: BaseException | None) -> str:
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def caused_by(error: StoreUnavailable, codes: frozenset[str]) -> bool:
    """Say whether the store answered with one of these S3 error codes."""
    return _code(error.__cause__) in codes


def check_sha256(what: str, found: str, expected: str | None) -> None:
    """Raise ChecksumMismatch unless `found` is what was expected (None: anything)."""
    if expected is not None and found != expected.lower():
        raise ChecksumMismatch(f"{what} has sha256 {found}, {expected} was expected")


@contextlib.contextmanager
def translated(where: str, key: str) -> Iterator[None]:
    """Turn botocore's errors into ours; `where` names the store, an empty `key` the bucket."""
    try:
        yield
    except ClientError as error:
        code = _code(error)
        if code in MISSING and key:
            raise ObjectMissing(key) from error
        raise StoreUnavailable(_explain(where, code)) from error
    except (BotoCoreError, OSError) as error:
        raise StoreUnavailable(_explain(where, type(error).__name__)) from error


class Patience(NamedTuple):
    """How long an outage of the store is waited out; an event that is set ends the waiting."""

    seconds: float = 0.0
    stop: threading.Event | None = None


def patiently(work: Callable[[], T], patience: Patience) -> T:
    """Return the result of `work()`, which is tried again while the store is away.

    Raises StoreUnavailable once that has lasted `patience.seconds`, or `patience.stop` is set.
    """
    stop = patience.stop or threading.Event()
    deadline = time.monotonic() + patience.seconds
    pause = 0.25
    while True:
        try:
            return work()
        except StoreUnavailable as error:
            if time.monotonic() + pause > deadline or stop.wait(pause):
                raise
            _log.warning("trying again: %s", error)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _explain(where: str, code: str) -> str:
    if code in FULL:
        return f"{where} is full ({code}): free some room, or raise its quota"
    if code in REFUSED:
        return f"{where}: access refused; check the S3 keys and their rights on the bucket"
    if code in ("NoSuchBucket", *MISSING):
        return f"{where}: there is no such bucket; create it or correct POLAR_S3_BUCKET"
    if code in TAKEN:
        return f"{where}: the object changed meanwhile; try again"
    return f"{where} does not answer ({code}); try again later"
