"""`/session` and `/stream-tickets`: how a browser gets in whose streams can send no header."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from app.auth import Caller, Role, require
from app.doors.cookie import clear_cookie, set_cookie
from app.doors.schemas import Ticket, TicketRequest
from app.doors.tickets import SECONDS, Tickets
from app.errors import BadRequest
from app.jobs.service import find_job
from app.settings import get_settings

router = APIRouter(tags=["browsers"])

_TICKETS: dict[str, Any] = {"all-jobs": {"value": {}}}


@router.post(
    "/session",
    status_code=204,
    summary="Keep the key in a cookie",
    responses={400: {"description": "No API key in the header, so nothing to keep"}},
)
def open_session(request: Request, caller: Caller = require(Role.VIEWER)) -> Response:
    """Set a cookie with the key of the `Authorization` header, which no script can read.

    Changes that come with the cookie alone must come from a page of an allowed origin.
    """
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if caller.key_id is None or scheme.lower() != "bearer":
        raise BadRequest("send the API key as `Authorization: Bearer polar_…`", "no_key")
    cookie = set_cookie(key.strip(), **_reach(request))
    return Response(status_code=204, headers={"Set-Cookie": cookie})


@router.delete("/session", status_code=204, summary="Take the cookie away")
def close_session(request: Request, caller: Caller = require(Role.VIEWER)) -> Response:
    """Have the browser forget the key; the key itself stays valid."""
    del caller
    return Response(status_code=204, headers={"Set-Cookie": clear_cookie(**_reach(request))})


def _reach(request: Request) -> dict[str, bool]:
    """How far the cookie goes: a browser heeds in an answer only what could have set it, too."""
    secure = request.url.scheme == "https"
    return {"secure": secure, "cross_site": bool(get_settings().cors_origins)}


@router.post(
    "/stream-tickets",
    status_code=201,
    summary="Get a ticket for a stream",
    responses={404: {"description": "No such job"}},
)
async def give_ticket(
    request: Request,
    wanted: Annotated[TicketRequest, Body(openapi_examples=_TICKETS)],
    caller: Caller = require(Role.VIEWER),
) -> Ticket:
    """Return a ticket for one connection to a stream, as `?ticket=…` in its address."""
    path = "/events"
    if wanted.job_id is not None:
        await request.app.state.statements.run(find_job, caller.project_id, wanted.job_id)
        path = f"/jobs/{wanted.job_id}/events"
    tickets: Tickets = request.app.state.tickets
    ticket = await tickets.give(caller, path)
    return Ticket(ticket=ticket, path=f"{path}?ticket={ticket}", expires_in=SECONDS)
