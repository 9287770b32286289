"""`/presets`: parts of specs that a project keeps by name."""

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query

from app.auth import Caller, Role, require
from app.db import transaction
from app.http import Answers
from app.presets import examples, service
from app.presets.schemas import PresetBody, PresetList, PresetOut, PresetQuery

router = APIRouter(prefix="/presets", tags=["presets"])

PresetName = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", description="The preset's name.")
]
_ABSENT: Answers = {404: {"description": "No such preset"}}
_MANY: Answers = {409: {"description": "The project has too many presets"}}


@router.put("/{name}", summary="Keep a preset", responses={**_MANY})
def put_preset(
    name: PresetName,
    body: Annotated[PresetBody, Body(openapi_examples=examples.PUT)],
    caller: Caller = require(Role.SUBMITTER),
) -> PresetOut:
    """Keep a part of a spec under a name, in place of an earlier one.

    `POST /jobs`, `POST /plans` and the `spec` of `POST /sweeps` take it as `preset`, with the
    body's own fields over it.
    """
    with transaction() as session:
        return service.put_preset(session, caller.project_id, name, body)


@router.get("", summary="List presets")
def list_presets(
    query: Annotated[PresetQuery, Query()], caller: Caller = require(Role.VIEWER)
) -> PresetList:
    """Return a page of the project's presets, by name."""
    with transaction() as session:
        return service.list_presets(session, caller.project_id, query)


@router.get("/{name}", summary="Look at a preset", responses={**_ABSENT})
def get_preset(name: PresetName, caller: Caller = require(Role.VIEWER)) -> PresetOut:
    """Return a preset."""
    with transaction() as session:
        return service.show_preset(session, caller.project_id, name)


@router.delete("/{name}", status_code=204, summary="Delete a preset", responses={**_ABSENT})
def delete_preset(name: PresetName, caller: Caller = require(Role.SUBMITTER)) -> None:
    """Delete a preset. Jobs that were made from it stay as they are."""
    with transaction() as session:
        service.delete_preset(session, caller.project_id, name)
