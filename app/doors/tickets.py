"""Tickets for one stream: single use, a minute long, in the address of an `EventSource`.

They lie in Valkey under their hash; whoever takes one out is the only one who gets it.
"""

import hashlib
import json
import secrets

import redis.asyncio

from app.auth import Caller, Role
from app.errors import Unauthenticated
from app.settings import Settings

SECONDS = 60
_PATIENCE = 2.0


class Tickets:
    """Gives tickets out and takes them back; used from one event loop.

    Both raise redis.RedisError while Valkey is away.
    """

    def __init__(self, settings: Settings) -> None:
        self._valkey = redis.asyncio.Redis.from_url(
            settings.broker_url.get_secret_value(),
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            health_check_interval=30,
        )

    async def close(self) -> None:
        """Hang up."""
        await self._valkey.aclose()

    async def give(self, caller: Caller, path: str) -> str:
        """Return a ticket that lets who has it follow this path, once, as this caller."""
        ticket = secrets.token_urlsafe(32)
        holder = [caller.project_id, caller.key_id, caller.user, path]
        await self._valkey.set(_place(ticket), json.dumps(holder), ex=SECONDS)
        return ticket

    async def take(self, ticket: str, path: str) -> Caller:
        """Return whose ticket it is; raises Unauthenticated where it is used up, old or another's.

        It opens nothing but the stream that it was given for, and lets nobody change anything.
        """
        found = await self._valkey.getdel(_place(ticket))
        holder = json.loads(found) if found else None
        if holder is None or holder[-1] != path:
            raise Unauthenticated(
                "this ticket is used up, older than a minute or for another stream: get a new one"
                " with POST /stream-tickets",
                "invalid_ticket",
            )
        project_id, key_id, user, _ = holder
        return Caller(project_id, Role.VIEWER, key_id, user)


def _place(ticket: str) -> str:
    digest = hashlib.sha256(ticket.encode("utf-8", "surrogatepass")).hexdigest()
    return f"polar:ticket:{digest}"
