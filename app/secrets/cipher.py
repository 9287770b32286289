"""AES-256-GCM with a key file that only its owner may read."""

import contextlib
import hashlib
import os
import secrets
import tempfile
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.errors import Unavailable
from app.settings import Settings

_NONCE = 12
_SHORTEST_KEY = 32


class KeyFileUnusable(Unavailable):
    """The key file cannot be read or does not fit the stored values; an operator must act."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "key_file_unusable")


def key_file(settings: Settings) -> Path:
    """Return where the encryption key is kept."""
    return settings.secret_key_file or settings.home / "secrets" / "key"


def load_key(path: Path) -> bytes:
    """Return the AES key made of the file's content; the file is made up when there is none.

    Raises KeyFileUnusable when it cannot be read or is too short to be a key.
    """
    try:
        if not path.exists():
            _create(path)
        content = path.read_bytes().strip()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise KeyFileUnusable(
            f"the key file of the secrets cannot be read ({reason}); check its owner and mode"
        ) from error
    if len(content) < _SHORTEST_KEY:
        raise KeyFileUnusable(
            f"the key file of the secrets has {len(content)} characters, at least "
            f"{_SHORTEST_KEY} are needed; restore the right one"
        )
    return hashlib.sha256(content).digest()


def _create(path: Path) -> None:
    """Write a new key whole; when several processes do so at once, one of them wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def encrypt(key: bytes, value: str, context: str) -> bytes:
    """Encrypt; the result can be decrypted with the same `context` alone."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, value.encode(), context.encode())


def decrypt(key: bytes, ciphertext: bytes, context: str) -> str:
    """Decrypt; raises KeyFileUnusable when the key is not the one that it was encrypted with."""
    nonce, body = ciphertext[:_NONCE], ciphertext[_NONCE:]
    try:
        return AESGCM(key).decrypt(nonce, body, context.encode()).decode()
    except InvalidTag as error:
        raise KeyFileUnusable(
            "a secret was encrypted with another key file; restore that file or store the "
            "secret again"
        ) from error
