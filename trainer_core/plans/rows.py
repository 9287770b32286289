"""Prepared rows by their length: the longest ones say how much memory a run needs."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_core.data.prepared import Prepared
from trainer_core.data.report import REPORT, TOKENIZER
from trainer_core.publish.manifest import write_manifest


def row_lengths(rows: Any) -> list[int]:
    """Tokens of each prepared row, of several sequences the longest; 1 for rows without tokens."""
    import pyarrow as pa

    found = [1] * len(rows)
    table = rows.data.table
    for column in table.columns:
        if pa.types.is_list(column.type) and pa.types.is_integer(column.type.value_type):
            lengths = [n for chunk in column.chunks for n in chunk.value_lengths().to_pylist()]
            found = list(map(max, found, lengths))
    return found


def write_longest(data: Prepared, count: int, folder: Path) -> Path:
    """The `count` longest training rows as a prepared folder without validation rows."""
    lengths = row_lengths(data.train)
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    return _write(data, order[:count], folder)


def _write(data: Prepared, chosen: Sequence[int], folder: Path) -> Path:
    import pyarrow as pa

    folder.mkdir(parents=True)
    table = data.train.data.table.take(list(chosen))
    path = str(folder / "train.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    shutil.copyfile(data.folder / REPORT, folder / REPORT)
    if (data.folder / TOKENIZER).is_dir():
        shutil.copytree(data.folder / TOKENIZER, folder / TOKENIZER)
    write_manifest(folder, "prepared", 0, ("0" * 64, data.data_hash))
    return folder
