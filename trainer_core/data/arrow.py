"""Token rows in Arrow IPC files: written in batches, read by memory map."""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
_BATCH_TOKENS = 1 << 20


class ArrowWriter:
    """Writes rows of int32 lists; a context manager, after which the file is whole."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        import pyarrow as pa

        self._schema = pa.schema([(name, pa.list_(pa.int32())) for name in columns])
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, self._schema)
        self._digest = hashlib.sha256()
        self._columns: dict[str, list[Tokens]] = {name: [] for name in columns}
        self._pending = 0
        self.rows = 0
        self.tokens = 0
        self.trained = 0

    @property
    def hash(self) -> str:
        """sha256 over the rows' content, independent of Arrow's version."""
        return self._digest.hexdigest()

    def write(self, row: Mapping[str, Sequence[int] | Tokens]) -> None:
        """Add one row; every column has one number per token."""
        length = len(row["input_ids"])
        self._digest.update(length.to_bytes(8, "little"))
        for name, column in self._columns.items():
            values = np.asarray(row[name], dtype="<i4")
            column.append(values)
            self._digest.update(values.tobytes())
        self.rows += 1
        self.tokens += length
        self.trained += int(np.count_nonzero(self._columns["labels"][-1] != -100))
        self._pending += length
        if self._pending >= _BATCH_TOKENS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        arrays = []
        for rows in self._columns.values():
            offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
            arrays.append(pa.ListArray.from_arrays(offsets, np.concatenate(rows)))
            rows.clear()
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._pending = 0

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

        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._starts = list(accumulate((len(batch) for batch in batches), initial=0))
        self._columns: list[dict[str, tuple[Tokens, Tokens]]] = [
            {
                name: (batch.column(name).offsets.to_numpy(), batch.column(name).values.to_numpy())
                for name in batch.schema.names
            }
            for batch in batches
        ]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> dict[str, Tokens]:
        which = bisect_right(self._starts, number) - 1
        at = number - self._starts[which]
        return {
            name: values[offsets[at] : offsets[at + 1]]
            for name, (offsets, values) in self._columns[which].items()
        }

    def lengths(self) -> list[int]:
        """Tokens of each row."""
        offsets = (columns["input_ids"][0] for columns in self._columns)
        return [int(length) for part in offsets for length in np.diff(part)]
