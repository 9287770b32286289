"""Which way a request comes in."""

from collections.abc import MutableMapping
from typing import Any
from urllib.parse import parse_qs

from anyio import to_thread
from starlette.datastructures import Headers

from app.auth import Caller, cached_caller, find_caller
from app.doors import cookie, gateway
from app.doors.tickets import Tickets
from app.settings import Settings


class Door:
    """Finds the caller of a request: gateway, header, cookie, ticket, in this order."""

    def __init__(self, settings: Settings, tickets: Tickets) -> None:
        self._secret = settings.gateway_secret
        self._origins = settings.cors_origins
        self._tickets = tickets

    async def caller(self, scope: MutableMapping[str, Any]) -> Caller:
        """Return the caller; raises Unauthenticated, Forbidden and outages.

        A key seen a moment ago costs neither a query nor a thread.
        """
        headers = Headers(scope=scope)
        if self._secret is not None and gateway.PROOF in headers:
            return gateway.gateway_caller(headers, self._secret)
        header = headers.get("authorization")
        if header is None:
            if ticket := _ticket(scope):
                return await self._tickets.take(ticket, scope["path"])
            if header := cookie.key_in(headers):
                cookie.check_origin(scope["method"], headers, self._origins)
        known = cached_caller(header)
        return known if known is not None else await to_thread.run_sync(find_caller, header)


def _ticket(scope: MutableMapping[str, Any]) -> str | None:
    if scope["method"] != "GET" or b"ticket=" not in scope.get("query_string", b""):
        return None
    found = parse_qs(scope["query_string"].decode("latin-1")).get("ticket")
    return found[0] if found else None
