"""`/api-keys`: admins make, list and revoke keys of their project."""

from typing import Annotated

from fastapi import APIRouter, Body, Response

from app.auth import Caller, Role, forget_keys, require
from app.db import transaction
from app.http import KeyId
from app.keys import service
from app.keys.schemas import CreatedKey, KeyList, NewKey

router = APIRouter(prefix="/api-keys", tags=["keys"])

_EXAMPLE = {"ci": {"value": {"name": "ci", "role": "submitter"}}}


@router.post("", status_code=201, summary="Make an API key")
def create_key(
    new: Annotated[NewKey, Body(openapi_examples=_EXAMPLE)],
    response: Response,
    caller: Caller = require(Role.ADMIN),
) -> CreatedKey:
    """Make a key of the caller's project. The key is shown in this answer only."""
    with transaction() as session:
        created = service.create_key(session, caller.project_id, new)
    response.headers["Location"] = f"/api-keys/{created.id}"
    return created


@router.get("", summary="List API keys")
def list_keys(caller: Caller = require(Role.ADMIN)) -> KeyList:
    """Return the project's live keys, newest first, without their secret parts."""
    with transaction() as session:
        return service.list_keys(session, caller.project_id)


@router.delete(
    "/{key_id}",
    status_code=204,
    summary="Revoke an API key",
    responses={404: {"description": "No such key"}, 409: {"description": "The last admin key"}},
)
def revoke_key(key_id: KeyId, caller: Caller = require(Role.ADMIN)) -> None:
    """Revoke a key: it stops working within five seconds everywhere, at once here."""
    with transaction() as session:
        service.revoke_key(session, caller.project_id, key_id)
    forget_keys()
