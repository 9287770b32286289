"""Takes a job's own secrets out of everything that is stored, by exact value."""

from collections.abc import Iterable
from typing import Any

SHORTEST = 8
MASK = "[redacted]"


class Redactor:
    """Replaces each secret of at least eight characters; shorter ones would mask plain words."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: one secret may be a part of another.
        # Whoever uses one leaves off the space around it, and logs are read line by line.
        parts = {part.strip() for s in secrets for part in (s, *s.splitlines())}
        self._secrets = sorted((p for p in parts if len(p) >= SHORTEST), key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return the text without secrets, and without what Postgres cannot keep."""
        text = text.replace("\0", "").encode(errors="replace").decode()
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def data(self, value: Any) -> Any:
        """Return plain JSON data without secrets in its strings."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(k): self.data(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.data(each) for each in value]
        return value
