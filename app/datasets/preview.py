"""The first rows of an uploaded data set, read from the head of its file alone."""

import json
import math
from pathlib import Path
from typing import Any

from app.datasets.schemas import Preview, PreviewRow
from app.models import Dataset
from app.storage import Store
from trainer_core.data.readers import File, read_file
from trainer_core.data.rows import Row
from trainer_core.errors import InvalidData

HEAD = 2 * 2**20
_ELSEWHERE = "the rows are read where they are when a job prepares its data"
_PARQUET = "the rows of a Parquet file are read when a job prepares its data"
_LONG = f"only rows within the file's first {HEAD >> 20} MiB are shown"


def suffix_of(file_name: str) -> str:
    """Return the endings that say what a file is: `.jsonl`, `.csv.gz`, or nothing."""
    name, dot, packed = file_name.lower().rpartition(".gz")
    endings = Path(name if dot and not packed else file_name.lower()).suffix
    return endings + (".gz" if dot and not packed else "")


def preview(store: Store, dataset: Dataset, limit: int, folder: Path) -> Preview:
    """Return up to `limit` rows; `folder` is an empty one for the file's head."""
    if dataset.source != "upload" or dataset.size is None:
        return Preview(dataset_id=dataset.id, rows=[], note=_ELSEWHERE)
    if dataset.file_format == "parquet":
        return Preview(dataset_id=dataset.id, rows=[], note=_PARQUET)
    name = dataset.file_name or "file"
    head = folder / f"head{suffix_of(name)}"
    head.write_bytes(b"".join(store.iterate(dataset.location, 0, HEAD)))
    cut = dataset.size > HEAD
    rows = _first(File("file", head, name), limit, cut=cut)
    note = _LONG if cut and len(rows) < limit else None
    return Preview(dataset_id=dataset.id, rows=[_shown(row) for row in rows], note=note)


def _first(file: File, limit: int, *, cut: bool) -> list[Row]:
    rows: list[Row] = []
    try:
        for row in read_file(file):
            rows.append(row)
            if len(rows) == limit:
                return rows
    except InvalidData:
        if not cut:  # a whole file was readable when it was uploaded
            raise
    if cut and rows and rows[-1].problem:
        rows.pop()  # the line on which the head ends
    return rows


def _shown(row: Row) -> PreviewRow:
    return PreviewRow(line=row.place.number, values=_plain(row.values), problem=row.problem)


def _plain(value: Any) -> Any:
    """Return the value without what JSON cannot say: NaN, and half characters."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    return value
