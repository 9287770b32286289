"""Files that only their owner may read: written whole, with mode 600."""

import os
import secrets
import tempfile
from pathlib import Path


def private_folder(path: Path) -> Path:
    """Create `path` with mode 700, or tighten it to that, and return it."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_private(path: Path, content: str) -> None:
    """Put `content` at `path` in one step, readable by its owner alone."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    Path(name).replace(path)


def secret(path: Path, length: int = 32) -> str:
    """Return the secret stored at `path`, made up on first use (`length` random bytes)."""
    if not path.exists():
        private_folder(path.parent)
        write_private(path, secrets.token_urlsafe(length))
    path.chmod(0o600)
    return path.read_text(encoding="utf-8").strip()
