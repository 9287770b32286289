"""Writes the pointer object of a published model: `<project>/models/<name>/v<version>.json`.

Postgres decides what is published; the object says the same to those who read the store alone.
"""

import json

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db import transaction
from app.models import ModelVersion
from app.registry.service import mark_pointer_written, pointer_key
from app.storage import Store


def write_next_pointer(objects: Store) -> bool:
    """Write one pointer that is missing; returns False when none is. Writing twice is silent.

    Raises StoreUnavailable.
    """
    with transaction() as session:
        version = _missing(session)
    if version is None:
        return False
    objects.put_bytes(pointer_key(version), pointer_of(version))
    with transaction() as session:
        mark_pointer_written(session, version.id)
    return True


def pointer_of(version: ModelVersion) -> bytes:
    """Return the pointer's content."""
    document = {
        "model": version.name,
        "version": version.version,
        "job_id": version.job_id,
        "prefix": version.prefix,
        "manifest_sha256": version.manifest_sha256,
    }
    return json.dumps(document, ensure_ascii=False, sort_keys=True).encode()


def _missing(session: Session) -> ModelVersion | None:
    query = select(ModelVersion).where(
        ModelVersion.pointer_written_at.is_(None), ModelVersion.deleted_at.is_(None)
    )
    return session.scalar(query.order_by(ModelVersion.id).limit(1))
