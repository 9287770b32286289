"""Manifests in the store: a folder with one is whole."""

import hashlib

from pydantic import ValidationError

from app.storage import ChecksumMismatch, Store, join_key
from trainer_core.publish.manifest import MANIFEST, Manifest

_LARGEST = 16 * 2**20


def read_manifest(store: Store, prefix: str, sha256: str | None = None) -> Manifest:
    """Read the manifest of the folder at `prefix`, checked against its committed sha256.

    Raises ObjectMissing where there is none, ChecksumMismatch where it is another.
    """
    key = join_key(prefix.rstrip("/"), MANIFEST)
    content = store.get_bytes(key, _LARGEST)
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise ChecksumMismatch(f"{key} has sha256 {found}, {sha256} was committed")
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise ChecksumMismatch(f"{key} is not a manifest") from error
