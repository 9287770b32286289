"""Who calls, and what their role lets them do."""

import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fastapi import Depends, Request

from app.db import transaction
from app.errors import Forbidden, Unauthenticated
from app.http import refuse_unknown_query
from app.keys.store import find_key, mark_used, token_hash
from app.models import DEFAULT_PROJECT

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_CACHE_SECONDS = 5.0
_CACHE_SIZE = 1024
_HOW = (
    "send the header `Authorization: Bearer polar_…`; `polar env` exports the first key, which"
    " lies in secrets/api-key of the data folder (containers: `python -m app first-key`)"
)


class Role(IntEnum):
    """What a key may do; each role includes those before it."""

    VIEWER = 1
    SUBMITTER = 2
    OPERATOR = 3
    ADMIN = 4


@dataclass(frozen=True)
class Caller:
    """An authenticated caller: every query is limited to its project."""

    project_id: str
    role: Role
    key_id: str | None
    user: str | None = None
    """The number of a gateway's user."""

    @property
    def budget(self) -> str | None:
        """Whose requests are counted together; None: nobody's."""
        return self.key_id or (self.user and f"user:{self.user}")

    @classmethod
    def anonymous(cls) -> "Caller":
        """The caller of a service that runs without keys: admin of the default project."""
        return cls(DEFAULT_PROJECT, Role.ADMIN, None)


_cache: dict[str, tuple[Caller, float]] = {}


def forget_keys() -> None:
    """Drop all remembered keys of this process, so that a revoked one ends now."""
    _cache.clear()


def cached_caller(header: str | None) -> Caller | None:
    """Return the caller of a header that was checked in the last seconds, else None.

    Raises Unauthenticated when it cannot be a key at all.
    """
    found = _cache.get(token_hash(_token(header)))
    return found[0] if found and found[1] > time.monotonic() else None


def find_caller(header: str | None) -> Caller:
    """Look the key up, remember it for a few seconds; raises Unauthenticated."""
    token = _token(header)
    digest = token_hash(token)
    with transaction() as session:
        row = find_key(session, token.split("_", 2)[1], digest)
        if row is None:
            raise Unauthenticated("this API key is not known or was revoked", "invalid_key")
        mark_used(session, row.id)
    caller = Caller(row.project_id, Role[row.role.upper()], row.id)
    if len(_cache) >= _CACHE_SIZE:
        _cache.clear()
    _cache[digest] = (caller, time.monotonic() + _CACHE_SECONDS)
    return caller


def _token(header: str | None) -> str:
    if not header:
        raise Unauthenticated(f"no API key: {_HOW}", "no_key")
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token.startswith("polar_") or token.count("_") < 2:
        raise Unauthenticated(f"this is not an API key: {_HOW}", "invalid_key")
    return token


def require(role: Role) -> Any:
    """Return the dependency that yields the Caller, or refuses with 403 below `role`.

    It also refuses query parameters that the route does not know: one dependency instead of two.
    """

    async def caller(request: Request) -> Caller:
        found: Caller = request.state.caller
        if found.role < role:
            raise Forbidden(
                f"this needs the role {role.name.lower()}, the key has {found.role.name.lower()}",
                "role_too_low",
            )
        refuse_unknown_query(request)
        return found

    return Depends(caller)
