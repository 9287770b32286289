"""`/secrets`: write-only values that specs refer to by name."""

from typing import Annotated

from fastapi import APIRouter, Body, Path

from app.auth import Caller, Role, require
from app.db import transaction
from app.secrets import service
from app.secrets.schemas import NewSecret, SecretList, SecretOut, SecretValue

router = APIRouter(prefix="/secrets", tags=["secrets"])

SecretName = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", description="The secret's name.")
]
_NEW = {"hub-token": {"value": {"name": "hub-token", "value": "hf_0123456789abcdef"}}}
_VALUE = {"hub-token": {"value": {"value": "hf_0123456789abcdef"}}}


@router.post("", status_code=201, summary="Store a secret")
def create_secret(
    secret: Annotated[NewSecret, Body(openapi_examples=_NEW)],
    caller: Caller = require(Role.SUBMITTER),
) -> SecretOut:
    """Store a value under a name, in place of an earlier one. It is never shown again."""
    with transaction() as session:
        value = secret.value.get_secret_value()
        return service.put_secret(session, caller.project_id, secret.name, value)


@router.put("/{name}", summary="Store or replace a secret")
def put_secret(
    name: SecretName,
    secret: Annotated[SecretValue, Body(openapi_examples=_VALUE)],
    caller: Caller = require(Role.SUBMITTER),
) -> SecretOut:
    """Store a value under this name, in place of an earlier one. It is never shown again."""
    with transaction() as session:
        value = secret.value.get_secret_value()
        return service.put_secret(session, caller.project_id, name, value)


@router.get("", summary="List secrets")
def list_secrets(caller: Caller = require(Role.SUBMITTER)) -> SecretList:
    """Return the names of the project's secrets; values are never returned."""
    with transaction() as session:
        return service.list_secrets(session, caller.project_id)


@router.delete(
    "/{name}",
    status_code=204,
    summary="Delete a secret",
    responses={404: {"description": "No such secret"}},
)
def delete_secret(name: SecretName, caller: Caller = require(Role.SUBMITTER)) -> None:
    """Delete a secret; jobs that name it fail when they need it."""
    with transaction() as session:
        service.delete_secret(session, caller.project_id, name)
