"""Takes the bytes of a PATCH into the store, in blocks that count as soon as they are committed."""

import contextlib
import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Any

from anyio import to_thread
from starlette.requests import ClientDisconnect, Request

from app.db import transaction
from app.errors import BadRequest, TooLarge
from app.models import Upload
from app.settings import get_settings
from app.storage import Store, StoreUnavailable, join_key
from app.store_threads import in_store_thread
from app.uploads import store
from app.uploads.errors import OffsetMismatch, WrongChecksum
from app.uploads.service import prefix_of
from app.uploads.store import Block

BLOCK = 8 * 2**20
ALGORITHMS = ("sha256", "sha1")


@dataclass(frozen=True)
class Checksum:
    """What the bytes of one PATCH must be; they count together, or not at all."""

    algorithm: str
    digest: bytes


@dataclass
class _Sink:
    """Blocks of one PATCH on their way: one is filled in memory, those before it are stored."""

    objects: Store
    upload: Upload
    checksum: Checksum | None
    waiting: bytearray = field(default_factory=bytearray)
    held: list[Block] = field(default_factory=list)
    hashed: Any = None

    def __post_init__(self) -> None:
        self.end = self.upload.received
        if self.checksum is not None:
            self.hashed = hashlib.new(self.checksum.algorithm)

    async def put(self, data: bytes) -> None:
        """Take what came; raises TooLarge behind the end of the file."""
        if self.end + len(self.waiting) + len(data) > self.upload.length:
            message = (
                f"more bytes than Upload-Length {self.upload.length} came; HEAD says how many of "
                "them were taken before that: go on there, or begin another upload"
            )
            raise TooLarge(message, "upload_too_long")
        if self.hashed is not None:
            self.hashed.update(data)
        self.waiting += data
        if len(self.waiting) >= BLOCK:
            await self.flush()

    async def flush(self) -> None:
        """Store what waits; without a checksum it counts from now on."""
        if self.waiting:
            data, self.waiting = bytes(self.waiting), bytearray()
            await in_store_thread(self._store, data)

    def _store(self, data: bytes) -> None:
        name = f"{self.end:020d}-{secrets.token_hex(4)}"  # of its own: another client may send too
        key = join_key(prefix_of(self.upload) + name)
        self.objects.put_bytes(key, data)
        self.held.append(Block(self.end, len(data), key))
        self.end += len(data)
        if self.checksum is None:
            self._commit()

    def _commit(self) -> None:
        start = self.held[0].start
        with transaction() as session:
            if not store.add_blocks(session, self.upload, self.held, get_settings().upload_hours):
                raise OffsetMismatch(start, _received(self.upload))
        self.held.clear()

    async def finish(self) -> None:
        """Store the rest; raises WrongChecksum, and nothing of this PATCH counts then."""
        await self.flush()
        if self.checksum is not None and self.held:
            if self.hashed.digest() != self.checksum.digest:
                raise WrongChecksum
            await to_thread.run_sync(self._commit)

    def forget(self) -> None:
        """Delete what was stored and does not count, now or together with the upload."""
        with contextlib.suppress(StoreUnavailable):
            self.objects.delete_all([block.key for block in self.held])
        self.held.clear()


def _received(upload: Upload) -> int:
    with transaction() as session:
        found = store.find(session, upload.project_id, upload.id)
    return found.received if found else 0


async def receive(
    request: Request, objects: Store, upload: Upload, checksum: Checksum | None
) -> int:
    """Take the bytes of a PATCH; returns the new offset.

    What came before a connection broke stays. Raises TooLarge, OffsetMismatch, WrongChecksum,
    StoreUnavailable, and BadRequest for a connection that broke.
    """
    sink = _Sink(objects, upload, checksum)
    try:
        async for data in request.stream():
            await sink.put(data)
        await sink.finish()
    except ClientDisconnect as error:
        if checksum is None:
            await sink.flush()
        raise BadRequest("the upload broke off: go on where HEAD says", "broken_off") from error
    finally:
        if sink.held:
            with contextlib.suppress(StoreUnavailable):  # housekeeping finds them
                await in_store_thread(sink.forget)
    return sink.end
