"""A whole upload is put together, looked through as any other, and becomes a data set."""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from anyio import to_thread
from sqlalchemy.orm import Session

from app import problem
from app.datasets import service as datasets
from app.datasets.inspecting import inspect_upload
from app.datasets.preview import suffix_of
from app.datasets.receive import Received, require_room
from app.datasets.temporary import temporary_folder
from app.db import transaction
from app.errors import Conflict, InvalidPayload
from app.models import Dataset, Upload
from app.settings import get_settings
from app.storage import Store, StoreUnavailable
from app.store_threads import in_store_thread
from app.uploads import store
from app.uploads.service import delete_blocks, form_of

_RENEW_EVERY = 15.0
_log = logging.getLogger(__name__)


async def check(objects: Store, upload: Upload) -> None:
    """Make the data set of a complete upload, unless someone is at it.

    Raises InvalidPayload for data that are refused (they are gone then), and what may be tried
    again later: Unavailable and StoreUnavailable.
    """
    checker = secrets.token_hex(8)
    if not await to_thread.run_sync(_claim, upload.id, checker):
        return
    try:
        async with _renewing(upload.id, checker):
            await _check(objects, upload, checker)
    except InvalidPayload as refused:
        document = problem.of_service_error(refused).model_dump(mode="json")
        await to_thread.run_sync(_end, upload.id, checker, "refused", document)
        await _delete_blocks(objects, upload)
        raise
    except BaseException:
        await to_thread.run_sync(_end, upload.id, checker, "receiving", None)
        raise
    await _delete_blocks(objects, upload)


async def check_quietly(objects: Store, upload: Upload) -> None:
    """`check` for those that wait for no answer: what it raises is logged."""
    try:
        await check(objects, upload)
    except (InvalidPayload, Conflict, StoreUnavailable, OSError) as error:
        _log.warning("upload %s: %s", upload.id, error)


async def _delete_blocks(objects: Store, upload: Upload) -> None:
    with contextlib.suppress(StoreUnavailable):  # housekeeping finds them
        await in_store_thread(delete_blocks, objects, upload)


def _claim(upload_id: str, checker: str) -> bool:
    with transaction() as session:
        return store.claim_check(session, upload_id, checker)


def _end(upload_id: str, checker: str, status: str, document: dict[str, object] | None) -> None:
    with transaction() as session:
        store.end_check(session, upload_id, checker, status, problem=document)


@contextlib.asynccontextmanager
async def _renewing(upload_id: str, checker: str) -> AsyncIterator[None]:
    """Keep the check ours while it lasts; its last word is guarded anyway."""
    task = asyncio.create_task(_renew(upload_id, checker))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _renew(upload_id: str, checker: str) -> None:
    while True:
        await asyncio.sleep(_RENEW_EVERY)
        with contextlib.suppress(*problem.OUTAGES):
            await to_thread.run_sync(_renew_once, upload_id, checker)


def _renew_once(upload_id: str, checker: str) -> None:
    with transaction() as session:
        store.renew_check(session, upload_id, checker)


async def _check(objects: Store, upload: Upload, checker: str) -> None:
    form = form_of(upload)
    with temporary_folder(get_settings().home) as folder:
        path = folder / f"upload{suffix_of(form.file_name)}"
        sha256 = await in_store_thread(_put_together, objects, upload, path)
        datasets.check_form(form, sha256)
        found = await inspect_upload(path, form.file_name)
        received = Received(path, upload.length, sha256, form.file_name)

        def done(session: Session, dataset: Dataset) -> None:
            if not store.end_check(session, upload.id, checker, "done", dataset_id=dataset.id):
                raise Conflict("someone else has finished this upload", "upload_finished")

        def keep() -> Dataset:
            return datasets.keep_upload(
                objects, upload.project_id, form, received, found, also=done
            )

        await in_store_thread(keep)


def _put_together(objects: Store, upload: Upload, path: Path) -> str:
    """Write all blocks to one file; returns its sha256. Raises Unavailable on a full disk."""
    with transaction() as session:
        blocks = store.blocks_of(session, upload.id)
    require_room(path.parent, upload.length)
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for block in blocks:
            data = objects.get_bytes(block.key, block.size)
            if file.tell() != block.start or len(data) != block.size:
                raise StoreUnavailable(f"block {block.key} is not what was stored: upload it again")
            file.write(data)
            digest.update(data)
    return digest.hexdigest()
