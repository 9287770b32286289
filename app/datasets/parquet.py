"""Reads the footer of a Parquet file: rows and column names, with the standard library alone.

The footer is Thrift's compact protocol; layout: https://github.com/apache/parquet-format.
Values are not read here: they are when the data are prepared.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"PAR1"
_LARGEST_FOOTER = 64 * 2**20
_DEEPEST = 16
_BOOLEANS = {1: True, 2: False}
_SCHEMA, _ROWS, _NAME, _CHILDREN = 2, 3, 4, 5  # field ids of FileMetaData and SchemaElement


class BrokenParquet(ValueError):
    """The file is not a whole Parquet file; the message says where it ends being one."""


@dataclass(frozen=True)
class Footer:
    """What a Parquet file says of itself: rows, and column → names of the fields within it."""

    rows: int
    columns: dict[str, list[str]]


def read_footer(path: Path) -> Footer:
    """Return the footer; raises BrokenParquet."""
    content = _footer_bytes(path)
    try:
        metadata = _Compact(content).struct()
        elements = metadata[_SCHEMA]
        columns = dict(_columns(elements))
        rows = metadata[_ROWS]
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise BrokenParquet("its footer is damaged") from error
    if not isinstance(rows, int) or rows < 0 or not columns:
        raise BrokenParquet("its footer is damaged")
    return Footer(rows, columns)


def _footer_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise BrokenParquet("it does not begin with PAR1")
        size = file.seek(0, 2)
        if size < 12:
            raise BrokenParquet("it is cut off")
        file.seek(-8, 2)
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC:
            raise BrokenParquet("it does not end with PAR1: it is cut off, or encrypted")
        if not 0 < length <= min(size - 12, _LARGEST_FOOTER):
            raise BrokenParquet("its footer is damaged")
        file.seek(-8 - length, 2)
        return file.read(length)


def _columns(elements: list[dict[int, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield each column of the root with the names of everything below it."""
    position = 1
    for _ in range(elements[0][_CHILDREN]):
        start, open_ = position, 1
        while open_:
            open_ += elements[position].get(_CHILDREN, 0) - 1
            position += 1
        names = [element[_NAME].decode() for element in elements[start:position]]
        yield names[0], names[1:]


class _Compact:
    """A reader of Thrift's compact protocol; structs become {field id: value}."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise IndexError("behind the end")
        self._at += count
        return self._data[self._at - count : self._at]

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Read a struct."""
        fields: dict[int, Any] = {}
        last = 0
        while header := self._byte():
            delta, kind = header >> 4, header & 0x0F
            last = last + delta if delta else self._zigzag()
            fields[last] = _BOOLEANS[kind] if kind in _BOOLEANS else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise IndexError("nested too deeply")
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind in (1, 2, 3):
            return self._byte()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            return self._list(depth)
        if kind == 12:
            return self.struct(depth + 1)
        raise IndexError(f"unexpected type {kind}")

    def _list(self, depth: int) -> list[Any]:
        header = self._byte()
        count, kind = header >> 4, header & 0x0F
        if count == 15:
            count = self._varint()
        if count > len(self._data):
            raise IndexError("longer than the file")
        return [self._value(kind, depth + 1) for _ in range(count)]
