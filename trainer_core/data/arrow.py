"""Token rows in Arrow IPC files: written in batches, read by memory map."""

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_BATCH_TOKENS = 1 << 20


class ArrowWriter:
    """Writes rows of int32 lists; a context manager, after which the file is whole."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        import pyarrow as pa

        self._type = pa.list_(pa.int32())
        self._schema = pa.schema([(name, self._type) for name in columns])
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, self._schema)
        self._digest = hashlib.sha256()
        self._empty()
        self.rows = 0
        self.tokens = 0
        self.trained = 0

    @property
    def hash(self) -> str:
        """sha256 over the rows' content, independent of Arrow's version."""
        return self._digest.hexdigest()

    def write(self, row: Mapping[str, list[int]]) -> None:
        """Add one row; every column has one number per token."""
        for name, column in self._columns.items():
            column.append(row[name])
            self._digest.update(len(row[name]).to_bytes(8, "little"))
            self._digest.update(array("i", row[name]).tobytes())
        self.rows += 1
        self.tokens += len(row["input_ids"])
        self.trained += sum(label != -100 for label in row["labels"])
        self._pending += len(row["input_ids"])
        if self._pending >= _BATCH_TOKENS:
            self._flush()

    def _empty(self) -> None:
        self._columns: dict[str, list[list[int]]] = {name: [] for name in self._schema.names}
        self._pending = 0

    def _flush(self) -> None:
        import pyarrow as pa

        arrays = [pa.array(column, type=self._type) for column in self._columns.values()]
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._empty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._pending:
            self._flush()
        self._writer.close()
        self._sink.close()


class ArrowRows:
    """Rows of an Arrow IPC file by number, without loading the file."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._map = pa.memory_map(str(path))
        reader = pa.ipc.open_file(self._map)
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._names = reader.schema.names
        self._starts = list(accumulate((len(batch) for batch in self._batches), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> dict[str, list[int]]:
        which = bisect_right(self._starts, number) - 1
        batch, row = self._batches[which], number - self._starts[which]
        return {name: batch.column(name)[row].as_py() for name in self._names}

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        for batch in self._batches:
            yield from batch.to_pylist()

    def lengths(self) -> list[int]:
        """Tokens of each row."""
        import pyarrow.compute as pc

        values: list[Any] = []
        for batch in self._batches:
            values += pc.list_value_length(batch.column("input_ids")).to_pylist()
        return values

    def close(self) -> None:
        """Release the memory map."""
        self._batches = []
        self._map.close()
