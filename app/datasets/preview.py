"""The first rows of an uploaded data set, read from the head of its file alone."""

import asyncio
import json
import logging
import signal
from pathlib import Path

from anyio import to_thread

from app.datasets import limited
from app.datasets.first_rows import NO_MEMORY
from app.datasets.schemas import Preview, PreviewRow
from app.errors import Unavailable
from app.models import Dataset
from app.storage import Store
from app.store_threads import in_store_thread

HEAD = 2 * 2**20
_ELSEWHERE = "the rows are read where they are when a job prepares its data"
_WHOLE_ONLY = {
    "parquet": "the rows of a Parquet file are read when a job prepares its data",
    "zip": "the rows and images of a zip archive are read when a job prepares its data",
}
_LONG = f"only rows within the file's first {HEAD >> 20} MiB are shown"
_LARGE = "the next row is too large to be shown; a job's preparation has more memory for it"
_SECONDS = 30.0  # for the rows, and as long for a turn
_AT_ONCE = asyncio.Semaphore(2)
_ENDED_FOR_SIZE = (None, NO_MEMORY, -signal.SIGKILL, -signal.SIGXCPU)
_log = logging.getLogger(__name__)


LONGEST_SUFFIX = 20


def suffix_of(file_name: str) -> str:
    """Return the endings that say what a file is: `.jsonl`, `.csv.gz`, or nothing."""
    name, dot, packed = file_name.lower().rpartition(".gz")
    endings = Path(name if dot and not packed else file_name.lower()).suffix
    if len(endings.encode()) > LONGEST_SUFFIX:  # no kind of file, and maybe too long for a name
        endings = ""
    return endings + (".gz" if dot and not packed else "")


async def preview(store: Store, dataset: Dataset, limit: int, folder: Path) -> Preview:
    """Return up to `limit` rows; `folder` is an empty one for the file's head.

    Raises StoreUnavailable, and Unavailable while too many previews are made.
    """
    if dataset.source != "upload" or dataset.size is None:
        return Preview(dataset_id=dataset.id, rows=[], note=_ELSEWHERE)
    if dataset.file_format in _WHOLE_ONLY:
        return Preview(dataset_id=dataset.id, rows=[], note=_WHOLE_ONLY[dataset.file_format])
    name = dataset.file_name or "file"
    head = folder / f"head{suffix_of(name)}"
    await in_store_thread(_fetch, store, dataset.location, head)
    cut = dataset.size > HEAD
    code = await _in_turn(head, name, limit, cut=cut)
    rows = await to_thread.run_sync(_read, folder / "rows")
    note = _LARGE if code in _ENDED_FOR_SIZE else None
    if cut and not note and len(rows) < limit:
        note = _LONG
    return Preview(dataset_id=dataset.id, rows=rows, note=note)


def _fetch(store: Store, location: str, head: Path) -> None:
    head.write_bytes(b"".join(store.iterate(location, 0, HEAD)))


async def _in_turn(head: Path, name: str, limit: int, *, cut: bool) -> int | None:
    """Write the rows beside the head; returns how the process ended that read them."""
    try:
        async with asyncio.timeout(_SECONDS):
            await _AT_ONCE.acquire()
    except TimeoutError as error:
        message = "too many previews are being made: try again soon"
        raise Unavailable(message, "preview_busy") from error
    try:
        arguments = (str(head), name, str(limit), "cut" if cut else "whole")
        ended = await limited.run(
            "app.datasets.first_rows", *arguments, output=head.parent / "rows", seconds=_SECONDS
        )
    finally:
        _AT_ONCE.release()
    if ended.code != 0:
        _log.warning("a preview ended with %s: %s", ended.code, ended.errors)
    if ended.code == 0 or ended.code in _ENDED_FOR_SIZE:
        return ended.code
    raise RuntimeError("the preview of an upload failed; its error is logged above")


def _read(path: Path) -> list[PreviewRow]:
    """Return the rows that were written whole."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [PreviewRow.model_validate(json.loads(line)) for line in lines]
