"""The user's side: SDK, command line, embedded stack, doctor, sample job.

    from polar import Client, AsyncClient

`import polar` alone loads nothing of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polar.sdk.client import AsyncClient as AsyncClient
    from polar.sdk.client import Client as Client
    from polar.sdk.errors import ApiError as ApiError
    from polar.sdk.errors import ClientError as ClientError
    from polar.sdk.errors import Conflict as Conflict
    from polar.sdk.errors import Corrupt as Corrupt
    from polar.sdk.errors import Forbidden as Forbidden
    from polar.sdk.errors import Invalid as Invalid
    from polar.sdk.errors import NoService as NoService
    from polar.sdk.errors import NotFound as NotFound
    from polar.sdk.errors import RateLimited as RateLimited
    from polar.sdk.errors import ServerError as ServerError
    from polar.sdk.errors import Unauthenticated as Unauthenticated
    from polar.sdk.errors import Unreachable as Unreachable
    from polar.sdk.errors import Unsendable as Unsendable
    from polar.sdk.errors import Waited as Waited
    from polar.sdk.jobs import AsyncJob as AsyncJob
    from polar.sdk.jobs import Job as Job
    from polar.sse import Frame as Frame

_PLACES = {
    "polar.sdk.client": ("Client", "AsyncClient"),
    "polar.sdk.jobs": ("Job", "AsyncJob"),
    "polar.sse": ("Frame",),
    "polar.sdk.errors": (
        *("ApiError", "ClientError", "Conflict", "Corrupt", "Forbidden", "Invalid", "NoService"),
        *("NotFound", "RateLimited", "ServerError", "Unauthenticated", "Unreachable"),
        *("Unsendable", "Waited"),
    ),
}
_WHERE = {name: module for module, names in _PLACES.items() for name in names}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'polar' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
