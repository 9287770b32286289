"""Gives a trainer the bytes of objects that it asks for: it has neither the store's keys nor its
address (`trainer_core.data.lent` is the other side)."""

import json
import logging
import os
import socket
import socketserver
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from app.s3 import (
    TAKEN,
    ChecksumMismatch,
    ObjectMissing,
    Patience,
    StoreUnavailable,
    caused_by,
    patiently,
)
from app.storage import ObjectInfo, Store
from trainer_core.data.lent import BLOCKS, Block, address_in
from trainer_core.data.objects import AT_ONCE
from trainer_core.spec.launch import LentObject, LentSource

_LONGEST_LINE = 65_536
_TICK = 0.05  # seconds until an end is noticed
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lent:
    """A source that lies in a store: its objects by the names that the trainer knows.

    `alone`: it is one object, not what lies below an address. `known` are sha256 of objects whose
    content is known; of others the store's own tag stands for it.
    """

    store: Store
    objects: Mapping[str, ObjectInfo]
    alone: bool
    known: Mapping[str, str] = field(default_factory=dict)

    def told(self) -> LentSource:
        """As the trainer is told of it."""
        return LentSource(
            alone=self.alone,
            objects=[
                LentObject(name=name, size=info.size, version=self.known.get(name, info.etag))
                for name, info in self.objects.items()
            ],
        )


class BlockServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The socket of one run; a context manager. Nobody is served before `serve` says who.

    Raises OSError where the folder can hold no socket.
    """

    daemon_threads = True
    block_on_close = False  # a thread may wait for the store; nobody waits for its answer any more

    def __init__(self, folder: Path, lent: Mapping[str, Lent], patience: float) -> None:
        self._lent = lent
        self._stop = threading.Event()
        self._patience = Patience(patience, self._stop)
        self._pid = 0
        self._place = folder / BLOCKS
        self.given = 0
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            super().__init__(address_in(opened), _Handler)
        finally:
            os.close(opened)

    def serve(self, pid: int) -> None:
        """Answer this process from now on, and no other one."""
        self._pid = pid
        threading.Thread(
            target=self.serve_forever, args=[_TICK], name="blocks", daemon=True
        ).start()

    def __exit__(self, *_: object) -> None:
        """Answer nobody any more."""
        self._stop.set()
        if self._pid:
            self.shutdown()
        self.server_close()
        self._place.unlink(missing_ok=True)  # the folder's next run has a server of its own

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - the base's
        """Whether the run itself asks: another process of the same user may have found the way."""
        size = struct.calcsize("3i")
        pid, _, _ = struct.unpack(
            "3i", request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        )
        return bool(pid == self._pid)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base's
        """A run that hung up in the middle of a block has ended."""
        _log.debug("a connection for blocks ended", exc_info=True)

    def read(self, line: bytes) -> bytes:
        """The bytes that a line asks for; an outage of the store is waited out.

        Raises ValueError for what was not lent, StoreUnavailable, ObjectMissing and
        ChecksumMismatch.
        """
        block = _block(line)
        lent = self._lent.get(block.source)
        info = None if lent is None else lent.objects.get(block.name)
        if lent is None or info is None:
            raise ValueError("it was not lent")
        data = patiently(lambda: _fetched(lent.store, info, block), self._patience)
        self.given += len(data)
        return data


class _Handler(socketserver.StreamRequestHandler):
    """One connection of the run."""

    server: BlockServer

    def handle(self) -> None:
        while line := self.rfile.readline(_LONGEST_LINE):
            try:
                data = self.server.read(line)
                said: dict[str, Any] = {"size": len(data)}
            except (ValueError, StoreUnavailable, ObjectMissing, ChecksumMismatch) as error:
                data, said = b"", {"error": str(error)}
            self.wfile.write(json.dumps(said).encode() + b"\n" + data)


def _block(line: bytes) -> Block:
    try:
        block = Block.model_validate_json(line)
    except ValidationError as error:
        raise ValueError("it was not asked for in the right way") from error
    if not 0 < block.end - block.begin <= AT_ONCE:
        raise ValueError(f"a block has 1 to {AT_ONCE} bytes")
    return block


def _fetched(store: Store, info: ObjectInfo, block: Block) -> bytes:
    try:
        return b"".join(store.iterate(info, block.begin, block.end))
    except StoreUnavailable as error:
        if caused_by(error, TAKEN):  # no wait brings the former one back
            raise ChecksumMismatch(f"{info.key} was replaced while it was read") from error
        raise
