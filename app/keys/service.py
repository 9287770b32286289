"""Rules of API keys."""

import secrets

from sqlalchemy.orm import Session

from app.errors import Conflict, NotFound
from app.ids import new_id
from app.keys import store
from app.keys.schemas import CreatedKey, KeyList, KeyOut, NewKey
from app.models import DEFAULT_PROJECT, ApiKey


def create_key(session: Session, project_id: str, new: NewKey) -> CreatedKey:
    """Make a key of the project; its secret part exists in the answer alone."""
    prefix = secrets.token_hex(6)
    key = f"polar_{prefix}_{secrets.token_urlsafe(32)}"
    row = store.add_key(
        session,
        {
            "id": new_id("key"),
            "project_id": project_id,
            "name": new.name,
            "role": new.role,
            "prefix": prefix,
            "hash": store.token_hash(key),
        },
    )
    return CreatedKey(**_fields(row).model_dump(), key=key)


def first_key(session: Session) -> str | None:
    """Make the default project's first admin key; None when it has one already."""
    if store.lock_admins(session, DEFAULT_PROJECT):
        return None
    return create_key(session, DEFAULT_PROJECT, NewKey(name="first key", role="admin")).key


def list_keys(session: Session, project_id: str) -> KeyList:
    """Return the project's keys."""
    return KeyList(items=[_fields(row) for row in store.list_keys(session, project_id)])


def revoke_key(session: Session, project_id: str, key_id: str) -> None:
    """Revoke a key; the last admin key stays, or nobody could make another."""
    if store.lock_admins(session, project_id) == [key_id]:
        raise Conflict(
            "this is the project's last admin key; make another admin key first", "last_admin_key"
        )
    if not store.revoke(session, project_id, key_id):
        raise NotFound(f"there is no API key {key_id}", "key_not_found")


def _fields(row: ApiKey) -> KeyOut:
    return KeyOut.model_validate(row, from_attributes=True)
