"""Rows in Arrow IPC files: written in batches, read by memory map."""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from trainer_core.data.layout import ColumnKind, Layout

Values = npt.NDArray[Any]
_BATCH_VALUES = 1 << 20
_DTYPES: dict[ColumnKind, str] = {"ints": "<i4", "floats": "<f4", "int": "<i4", "float": "<f4"}
_LISTS = ("ints", "floats")


class ArrowWriter:
    """Writes rows of one layout; a context manager, after which the file is whole."""

    def __init__(self, path: Path, layout: Layout) -> None:
        import pyarrow as pa

        self._layout = layout
        self._schema = pa.schema([(n, _arrow_type(k)) for n, k in layout.columns.items()])
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, self._schema)
        self._digest = hashlib.sha256()
        self._columns: dict[str, list[Any]] = {name: [] for name in layout.columns}
        self._pending = 0
        self.rows = 0
        self.tokens = 0
        self.trained = 0

    @property
    def hash(self) -> str:
        """sha256 over the rows' content, independent of Arrow's version."""
        return self._digest.hexdigest()

    def write(self, row: Mapping[str, Any]) -> None:
        """Add one row."""
        tokens = 0 if self._layout.sequences else 1
        for name in self._layout.sequences:
            tokens += len(row[name])
            self._digest.update(len(row[name]).to_bytes(8, "little"))
        length = tokens
        for name, kind in self._layout.columns.items():
            if kind == "text":
                length += self._write_text(name, row[name])
                continue
            if kind == "files":
                length += self._write_files(name, row[name])
                continue
            values = np.asarray(row[name], dtype=_DTYPES[kind])
            self._columns[name].append(values)
            self._digest.update(values.tobytes())
        self.rows += 1
        self.tokens += tokens
        targets = [self._columns[name][-1] for name in self._layout.targets]
        self.trained += sum(int(np.count_nonzero(t != -100)) for t in targets) if targets else 1
        self._pending += max(length, 1)
        if self._pending >= _BATCH_VALUES:
            self._flush()

    def _write_text(self, name: str, text: str) -> int:
        """Add a text; returns its bytes."""
        encoded = text.encode()
        self._columns[name].append(text)
        self._digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return len(encoded)

    def _write_files(self, name: str, files: Sequence[bytes]) -> int:
        """Add a row's files; returns their bytes."""
        self._columns[name].append(list(files))
        self._digest.update(len(files).to_bytes(8, "little"))
        for content in files:
            self._digest.update(len(content).to_bytes(8, "little") + content)
        return sum(map(len, files))

    def _flush(self) -> None:
        import pyarrow as pa

        arrays = []
        for name, kind in self._layout.columns.items():
            rows = self._columns[name]
            if kind in _LISTS:
                offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
                arrays.append(pa.ListArray.from_arrays(offsets, np.concatenate(rows)))
            elif kind == "text":
                arrays.append(pa.array(list(rows), type=pa.string()))
            elif kind == "files":
                arrays.append(pa.array(list(rows), type=_arrow_type(kind)))
            else:
                arrays.append(pa.array(np.stack(rows)))
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

    def __init__(self, path: Path, layout: Layout) -> None:
        import pyarrow as pa

        self._layout = layout
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._starts = list(accumulate((len(batch) for batch in batches), initial=0))
        self._columns = [_views(batch, layout) for batch in batches]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> dict[str, Any]:
        which = bisect_right(self._starts, number) - 1
        at = number - self._starts[which]
        return {
            name: values[at] if offsets is None else values[offsets[at] : offsets[at + 1]]
            for name, (offsets, values) in self._columns[which].items()
        }

    def lengths(self) -> list[int]:
        """Tokens of each row; where it has several sequences, of the longest one."""
        if not self._layout.sequences:
            return [1] * len(self)
        found: list[int] = []
        for columns in self._columns:
            parts = [np.diff(columns[name][0]) for name in self._layout.sequences]
            found += np.max(parts, axis=0).tolist()
        return found


def _arrow_type(kind: ColumnKind) -> Any:
    import pyarrow as pa

    if kind == "text":
        return pa.string()
    if kind == "files":
        return pa.list_(pa.binary())
    number = pa.int32() if kind in ("ints", "int") else pa.float32()
    return pa.list_(number) if kind in _LISTS else number


class _Values:
    """The values of a column by number; each is decoded when it is asked for."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __getitem__(self, number: int) -> Any:
        return self._column[number].as_py()


def _views(batch: Any, layout: Layout) -> dict[str, tuple[Any, Any]]:
    views: dict[str, tuple[Any, Any]] = {}
    for name, kind in layout.columns.items():
        column = batch.column(name)
        if kind in _LISTS:
            views[name] = (column.offsets.to_numpy(), column.values.to_numpy())
        elif kind in ("text", "files"):
            views[name] = (None, _Values(column))
        else:
            views[name] = (None, column.to_numpy())
    return views
