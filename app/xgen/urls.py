"""Whether an address that came from a browser is one of the service's own."""

from urllib.parse import SplitResult, urlsplit

_PORTS = {"http": 80, "https": 443}


def same_place(given: str, known: str) -> bool:
    """Say whether two addresses have the same host, port and path; credentials fit nothing.

    Without a scheme (`minio:9000`) the host and port of the known one decide.
    """
    try:
        return _place(given, known) == _place(known, known)
    except ValueError:
        return False


def _place(url: str, known: str) -> tuple[str, str | None, int | None, str]:
    scheme = urlsplit(known).scheme
    parts = urlsplit(url if "://" in url else f"{scheme}://{url}")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError("an address has neither a password nor a query")
    return parts.scheme, parts.hostname, _port(parts), parts.path.rstrip("/")


def _port(parts: SplitResult) -> int | None:
    return parts.port or _PORTS.get(parts.scheme)
