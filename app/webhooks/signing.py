"""How a delivery proves where it comes from."""

import hashlib
import hmac
import secrets

VERSION = "v1"


def new_secret() -> str:
    """Return a secret that nobody guesses (256 bits)."""
    return f"whsec_{secrets.token_urlsafe(32)}"


def signature(secret: str, timestamp: int, body: str) -> str:
    """Return `v1=` and the HMAC-SHA256 of `timestamp.body` in hexadecimal.

    The time (seconds since 1970) is part of it, so that an old delivery cannot be sent once more.
    """
    signed = f"{timestamp}.{body}".encode()
    return f"{VERSION}={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"
