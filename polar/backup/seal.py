"""The installation's secrets in a back-up: sealed with a passphrase, or plain with a warning."""

import base64
import json
import re
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from polar.backup.errors import BackupFailed
from polar.stack.private import private_folder, write_private

SHORTEST_PASSPHRASE = 12
_COST = 2**15
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
_CONTEXT = b"polar secrets"


def collect(folder: Path) -> dict[str, str]:
    """Return the secrets of a data folder by their file's name."""
    if not folder.is_dir():
        return {}
    files = sorted(
        each for each in folder.iterdir() if each.is_file() and _NAME.fullmatch(each.name)
    )
    return {each.name: each.read_text(encoding="utf-8") for each in files}


def lay(values: dict[str, str], folder: Path) -> None:
    """Write secrets into a folder of mode 700, each with mode 600."""
    private_folder(folder)
    for name, value in values.items():
        if not _NAME.fullmatch(name):
            raise BackupFailed(f"{name!r} is no name of a secret; the back-up is not one of ours")
        write_private(folder / name, value)


def read_passphrase(file: Path) -> str:
    """Return the passphrase of a file; raises BackupFailed when it is absent or too short."""
    try:
        passphrase = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BackupFailed(f"the passphrase file {file} cannot be read: {error}") from error
    if len(passphrase) < SHORTEST_PASSPHRASE:
        raise BackupFailed(
            f"the passphrase in {file} has {len(passphrase)} characters; "
            f"at least {SHORTEST_PASSPHRASE} are needed"
        )
    return passphrase


def seal(values: dict[str, str], passphrase: str) -> bytes:
    """Encrypt secrets (scrypt, AES-256-GCM)."""
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    sealed = AESGCM(_key(passphrase, salt)).encrypt(nonce, json.dumps(values).encode(), _CONTEXT)
    parts = {"salt": salt, "nonce": nonce, "sealed": sealed}
    return json.dumps({n: base64.b64encode(v).decode() for n, v in parts.items()}).encode()


def unseal(data: bytes, passphrase: str) -> dict[str, str]:
    """Decrypt what `seal` made; raises BackupFailed for another passphrase."""
    parts = {name: base64.b64decode(value) for name, value in json.loads(data).items()}
    cipher = AESGCM(_key(passphrase, parts["salt"]))
    try:
        plain = cipher.decrypt(parts["nonce"], parts["sealed"], _CONTEXT)
    except InvalidTag as error:
        raise BackupFailed(
            "the passphrase is not the one that the secrets were sealed with"
        ) from error
    values: dict[str, str] = json.loads(plain)
    return values


def _key(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=_COST, r=8, p=1).derive(passphrase.encode())
