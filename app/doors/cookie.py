"""The cookie that holds an API key: for browsers, whose streams cannot send a header."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from app.errors import Forbidden

NAME = "polar_key"
_SAFE = ("GET", "HEAD", "OPTIONS")


def key_in(headers: Headers) -> str | None:
    """Return the key of the cookie as an `Authorization` header has it; None without one."""
    key = cookie_parser(headers.get("cookie", "")).get(NAME)
    return f"Bearer {key}" if key else None


def check_origin(method: str, headers: Headers, origins: list[str]) -> None:
    """Raise Forbidden for a change that another site's page asks for with this browser's cookie."""
    if method in _SAFE:
        return
    origin = headers.get("origin")
    if origin in origins or (origin and _host(origin) == headers.get("host")):
        return
    raise Forbidden(
        f"a change with the cookie alone must come from a page of this service, or of an origin in"
        f" POLAR_CORS_ORIGINS, not from {(origin or 'nowhere')[:80]}; or send the key as"
        " `Authorization: Bearer polar_…`",
        "foreign_origin",
    )


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as `http://[`
        return None


def set_cookie(key: str, *, secure: bool, cross_site: bool) -> str:
    """Return the header that gives a browser the key until it is closed, out of scripts' reach."""
    site = "None" if secure and cross_site else "Lax"
    return f"{NAME}={key}; Path=/; HttpOnly; SameSite={site}{'; Secure' if secure else ''}"


def clear_cookie(*, secure: bool, cross_site: bool) -> str:
    """Return the header that takes the cookie away, wherever it could be set."""
    return f"{set_cookie('', secure=secure, cross_site=cross_site)}; Max-Age=0"
