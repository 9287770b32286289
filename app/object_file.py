"""An object of the store as a file that can be read and sought, without ever holding it whole."""

import io
from collections.abc import Iterator
from typing import Any

from app.storage import Store

_BUFFER = 2**20


class _Raw(io.RawIOBase):
    """Reads on from where it is by one request, and begins another where it was moved."""

    def __init__(self, objects: Store, key: str) -> None:
        super().__init__()
        self._objects = objects
        self._info = objects.info(key)
        self._at = 0
        self._blocks: Iterator[bytes] | None = None
        self._rest = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size}[whence]
        wanted = max(start + offset, 0)
        if wanted != self._at:
            self._at, self._blocks, self._rest = wanted, None, b""
        return wanted

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            if self._blocks is None:
                self._blocks = self._objects.iterate(self._info, self._at)
            self._rest = next(self._blocks, b"")
        taken = self._rest[: len(buffer)]
        buffer[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        self._at += len(taken)
        return len(taken)


def open_object(objects: Store, key: str) -> io.BufferedReader:
    """Open an object for reading; about 1 MiB of it is in memory at a time.

    Raises ObjectMissing and StoreUnavailable, also when it is read.
    """
    return io.BufferedReader(_Raw(objects, key), _BUFFER)
