"""Whole folders between this host and the store: the manifest last, every file checked."""

import contextlib
import errno
import hashlib
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from app.artifacts.manifest import read_manifest as read_stored_manifest
from app.multipart import PART
from app.s3 import patiently
from app.storage import IMPATIENT, ChecksumMismatch, ObjectMissing, Patience, Store, join_key
from trainer_core.publish.manifest import (
    MANIFEST,
    BrokenFolder,
    FileEntry,
    Manifest,
    read_manifest,
    sync_folder,
    write_durably,
)
from worker.holding import alone

_AT_ONCE = 4
_TRIES = 5
# One that stands still for so long is not waited for: a second download does no harm.
_WAIT = 600.0


@dataclass(frozen=True)
class Stored:
    """A folder in the store: its prefix (ending in '/'), its manifest and the manifest's sha256."""

    prefix: str
    manifest: Manifest
    manifest_sha256: str


def upload_folder(
    store: Store, folder: Path, prefix: str, patience: Patience = IMPATIENT
) -> Stored:
    """Upload a whole folder; the manifest appears last, so nothing half-written counts.

    Big files go one after the other, so that at most a few parts are in memory. Outages of the
    store are waited out for `patience` each; what was sent stays sent. Raises BrokenFolder for a
    folder without a manifest, ChecksumMismatch for a file that is not what the manifest says,
    StoreUnavailable and OSError.
    """
    manifest = read_manifest(folder)
    content = (folder / MANIFEST).read_bytes()

    def put(entry: FileEntry) -> None:
        key = join_key(prefix + entry.path)
        store.put_file(key, folder / entry.path, sha256=entry.sha256, patience=patience)

    small = [entry for entry in manifest.files if entry.size <= PART]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upload") as pool:
        jobs = [pool.submit(put, entry) for entry in small]
        for entry in manifest.files:
            if entry.size > PART:
                put(entry)
        for job in jobs:
            job.result()
    patiently(lambda: store.put_bytes(join_key(prefix + MANIFEST), content), patience)
    return Stored(prefix, manifest, hashlib.sha256(content).hexdigest())


def is_stored(store: Store, prefix: str) -> bool:
    """Say whether a whole folder lies at `prefix`: a manifest, and files of the sizes it names.

    Raises StoreUnavailable.
    """
    sizes = {found.key: found.size for found in store.list_objects(prefix)}
    try:
        manifest = read_stored_manifest(store, prefix, None)
    except (ObjectMissing, ChecksumMismatch):
        return False
    return all(sizes.get(join_key(prefix + each.path)) == each.size for each in manifest.files)


def download_folder(
    store: Store, prefix: str, folder: Path, manifest_sha256: str | None = None
) -> Path:
    """Download a whole folder to `folder`, unless it is there already; returns it.

    Those who want the same folder at once wait for the one that downloads it, and nobody removes a
    folder that is whole. Raises ObjectMissing, ChecksumMismatch, StoreUnavailable and OSError;
    nothing half-written stays.
    """
    if is_whole(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder, _WAIT):
        if not is_whole(folder):
            _fetch(store, prefix, folder, manifest_sha256)
    return folder


def _fetch(store: Store, prefix: str, folder: Path, manifest_sha256: str | None) -> None:
    manifest = read_stored_manifest(store, prefix, manifest_sha256)
    require_room(folder.parent, manifest.total_bytes)
    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    draft.mkdir(parents=True)
    try:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="download") as pool:
            jobs = [
                pool.submit(_download, store, prefix + e.path, draft / e.path, (e.size, e.sha256))
                for e in manifest.files
            ]
            for job in jobs:
                job.result()
        write_durably(draft / MANIFEST, store.get_bytes(prefix + MANIFEST, 16 * 2**20))
        _put_in_place(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _put_in_place(draft: Path, folder: Path) -> None:
    """Rename the draft; one that is whole there by now stays, a broken one makes room."""
    for _ in range(_TRIES):
        if _renamed(draft, folder) or is_whole(folder):
            sync_folder(folder.parent)
            return
        broken = draft.with_name(f"{draft.name}.broken")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(broken)
        shutil.rmtree(broken, ignore_errors=True)
    raise OSError(errno.ENOTEMPTY, "it is written again and again by others", str(folder))


def _renamed(draft: Path, folder: Path) -> bool:
    """Rename the draft; False when there is something already."""
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def require_room(folder: Path, needed: int) -> None:
    """Raise OSError ENOSPC unless so many bytes are free at `folder`: nothing half-written then."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        message = f"{needed} bytes are needed and {free} bytes are free"
        raise OSError(errno.ENOSPC, message, str(folder))


def _download(store: Store, key: str, path: Path, expected: tuple[int, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    store.get_file(join_key(key), path, size=expected[0], sha256=expected[1])


def is_whole(folder: Path) -> bool:
    """Say whether a folder has a manifest and files of the sizes that it names."""
    try:
        manifest = read_manifest(folder)
        return all((folder / e.path).stat().st_size == e.size for e in manifest.files)
    except (BrokenFolder, OSError):
        return False
