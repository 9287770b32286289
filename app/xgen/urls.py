"""Whether an address that came from a browser is one of the service's own."""

from urllib.parse import SplitResult, urlsplit

from app.settings import Settings

_PORTS = {"http": 80, "https": 443}


def refusal_of_store(given: str, settings: Settings) -> str | None:
    """Return why an address cannot be that of the object store; None where it is, or is empty."""
    known = [settings.s3_endpoint, settings.s3_public_endpoint, *settings.xgen_minio_urls]
    return _refusal(given, known, "POLAR_XGEN_MINIO_URLS")


def refusal_of_mlflow(given: str, settings: Settings) -> str | None:
    """Return why an address cannot be that of MLflow; None where it is, or is empty."""
    return _refusal(
        given, [settings.mlflow_url, *settings.xgen_mlflow_urls], "POLAR_XGEN_MLFLOW_URLS"
    )


def _refusal(given: str, known: list[str | None], setting: str) -> str | None:
    if not given or any(same_place(given, one) for one in known if one):
        return None
    _, at, place = given.rpartition("@")  # without a password
    shown = f"…{at}{place}"[:80] if at else given[:80]
    return (
        f"is {shown!r}, which is not this service's: leave it empty, or have the operator add it to"
        f" {setting}"
    )


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
