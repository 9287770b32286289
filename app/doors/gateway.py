"""Who calls through a gateway that has checked them: its headers, and the proof that they are its.

A browser can send every one of these headers but the secret.
"""

import hmac
import re

from pydantic import SecretStr
from starlette.datastructures import Headers

from app.auth import Caller, Role
from app.errors import Forbidden, Unauthenticated
from app.models import DEFAULT_PROJECT

PROOF = "x-gateway-secret"
TRAIN = "model:train"
_USER = re.compile(r"[0-9]{1,20}", re.ASCII)


def gateway_caller(headers: Headers, secret: SecretStr) -> Caller:
    """Return the user that the gateway names, as a caller of the default project.

    A superuser is admin, who may `model:train` is submitter. Raises Unauthenticated without the
    right secret or a user's number, Forbidden for all others.
    """
    given = headers.get(PROOF, "").encode("latin-1")  # the bytes that came
    if not hmac.compare_digest(given, secret.get_secret_value().encode()):
        raise Unauthenticated(
            "X-Gateway-Secret is not this service's: set POLAR_GATEWAY_SECRET of both alike",
            "invalid_gateway_secret",
        )
    user = headers.get("x-user-id", "")
    if not _USER.fullmatch(user):
        raise Unauthenticated("the gateway names no user: X-User-ID must be a number", "no_user")
    role = _role(headers)
    if role is None:
        raise Forbidden(f"user {user} has not the permission {TRAIN}", "no_permission")
    return Caller(DEFAULT_PROJECT, role, None, user)


def _role(headers: Headers) -> Role | None:
    if headers.get("x-user-superuser", "").strip().lower() in ("true", "1"):
        return Role.ADMIN
    permissions = re.split(r"[,\s]+", headers.get("x-user-permissions", ""))
    return Role.SUBMITTER if TRAIN in permissions else None
