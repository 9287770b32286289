"""Objects of a store as files that are read block by block, as far as rows are asked for."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from trainer_core.data.local import Wish, files_of_rows, read_tree
from trainer_core.data.readers import File, read_file
from trainer_core.data.rows import Row
from trainer_core.data.trees import ZipTree, is_hidden, is_zip

AT_ONCE = 4 << 20
"""Bytes that one request asks for."""
_GLIMPSE = 128 << 10  # bytes

Get = Callable[[str, int, int], bytes]
"""Name of an object, its first wanted byte and the one behind the last → the bytes."""


class Objects:
    """A tree of objects; `sizes` are their bytes by name, `get` fetches some of one."""

    def __init__(self, field: str, sizes: Mapping[str, int], get: Get) -> None:
        self.field = field
        self._sizes = sizes
        self._get = get

    def names(self, is_read: Callable[[str], bool]) -> Sequence[str]:
        """Those that are read by their names and not hidden, sorted."""
        return sorted(name for name in self._sizes if is_read(name) and not is_hidden(name))

    def open(self, name: str) -> IO[bytes]:
        """One of them, for reading from anywhere."""
        return cast("IO[bytes]", io.BufferedReader(self.whole(name), AT_ONCE))

    def whole(self, name: str) -> "Opened":
        """One of them without a buffer: no byte more is fetched than is read."""
        return Opened(self._get, name, self._sizes[name])

    def size(self, name: str) -> int:
        """Its bytes."""
        return self._sizes[name]


class Glimpsed(Objects):
    """Objects that are looked at here and there: little is fetched beside what is asked for."""

    def open(self, name: str) -> IO[bytes]:
        """One of them, for reading from anywhere."""
        return cast("IO[bytes]", io.BufferedReader(self.whole(name), _GLIMPSE))

    def files(self, alone: str | None, wish: Wish) -> list[File]:
        """Those whose rows `read_objects` gives, and a single one whatever it is."""
        return files_of_rows(self, wish) if alone is None else [File.of(self, alone)]


class Opened(io.RawIOBase):
    """One object as a file."""

    def __init__(self, get: Get, name: str, size: int) -> None:
        self._get = get
        self._name = name
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes: Parquet files and archives are read from their ends."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte; returns its number."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if begin + offset < 0:
            raise OSError("there is nothing before the beginning")
        self._at = begin + offset
        return self._at

    def tell(self) -> int:
        """The number of the next byte."""
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Fetch the next bytes; 0 at the end."""
        view = memoryview(buffer).cast("B")
        end = min(self._at + min(len(view), AT_ONCE), self._size)
        if end <= self._at:
            return 0
        data = self._get(self._name, self._at, end)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def read_objects(objects: Objects, alone: str | None, place: str, wish: Wish) -> Iterator[Row]:
    """Rows of a single object (`alone`), or of all data files of the tree, as `read_tree`.

    `place` is what it is called in errors. Nothing is written to a disk.
    """
    if alone is None:
        yield from read_tree(objects, f"place '{place}'", wish)
    elif is_zip(objects.whole(alone)):
        archive = ZipTree(objects.open(alone), objects.size(alone), objects.field, alone)
        yield from read_tree(archive, f"archive '{alone}'", wish)
    else:
        yield from read_file(File(objects.field, Path(alone), alone, objects))
