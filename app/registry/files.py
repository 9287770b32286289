"""The files of a published model: those that its committed manifest names, and no others."""

from app.artifacts.files import StoredFile
from app.artifacts.manifest import read_manifest
from app.errors import NotFound
from app.models import ModelVersion
from app.storage import ChecksumMismatch, Store, StoreUnavailable, join_key
from trainer_core.publish.manifest import MANIFEST, Manifest


def version_files(store: Store, version: ModelVersion) -> Manifest:
    """Return the model's manifest; raises StoreUnavailable when it is not the committed one."""
    try:
        return read_manifest(store, version.prefix, version.manifest_sha256)
    except ChecksumMismatch as error:
        raise StoreUnavailable(f"the model's manifest is damaged: {error}") from error


def stored_files(store: Store, version: ModelVersion) -> list[StoredFile]:
    """Return all files of the model, its manifest last."""
    manifest = version_files(store, version)
    folder = version.prefix.rstrip("/")
    files = [
        StoredFile(e.path, join_key(folder, e.path), e.size, e.sha256, version.created_at)
        for e in manifest.files
    ]
    key = join_key(folder, MANIFEST)
    size = store.info(key).size
    return [*files, StoredFile(MANIFEST, key, size, version.manifest_sha256, version.created_at)]


def find_file(store: Store, version: ModelVersion, path: str) -> StoredFile:
    """Return one file; raises InvalidKey for a path that climbs out, and NotFound."""
    join_key(path)
    for file in stored_files(store, version):
        if file.path == path:
            return file
    raise NotFound(
        f"version {version.version} of {version.name!r} has no file {path!r}", "file_not_found"
    )
