"""Takes a job's own secrets out of everything that is stored, by exact value.

A value is also looked for in the forms that programs give it on its way into a log: percent-encoded
as in an address, escaped as in JSON, in base64 as in an Authorization header (wherever it stands
in what was encoded), in hexadecimal, and broken over several lines.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

SHORTEST = 8
MASK = "[redacted]"
_SHORTEST_BEGINNING = 4


class Redactor:
    """Replaces each secret of at least eight characters; shorter ones would mask plain words."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: one secret may be a part of another.
        parts = {part for secret in secrets for part in _parts(secret) if len(part) >= SHORTEST}
        forms = {form for part in parts for form in _forms(part) if len(form) >= SHORTEST}
        self._secrets = sorted(forms, key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return the text without secrets, and without what Postgres cannot keep."""
        text = text.replace("\0", "").encode(errors="replace").decode()
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        if self._secrets and "\n" in text:
            return "\n".join(self._across(text.split("\n")))
        return text

    def lines(self, lines: Sequence[str]) -> list[str]:
        """Return the lines without secrets, also without those that run over their ends."""
        return self._across([self.text(line) for line in lines])

    def data(self, value: Any) -> Any:
        """Return plain JSON data without secrets in its strings."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(k): self.data(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.data(each) for each in value]
        return value

    def begins(self, line: str) -> int:
        """How many characters at the line's end may be the beginning of a secret; 0: none."""
        line = line.rstrip()
        found = (
            length
            for secret in self._secrets
            for length in range(min(len(secret) - 1, len(line)), _SHORTEST_BEGINNING - 1, -1)
            if line.endswith(secret[:length])
        )
        return max(found, default=0)

    def _across(self, lines: list[str]) -> list[str]:
        """Mask what stands in several lines: the parts of a secret in each of them."""
        if len(lines) < 2 or not self._secrets:
            return lines
        bare = [line.strip() for line in lines]
        joined = "".join(bare)
        spans = [
            (start, start + len(secret))
            for secret in self._secrets
            for start in _all(joined, secret)
        ]
        if not spans:
            return lines
        start, masked = 0, []
        for line, inner in zip(lines, bare, strict=True):
            end = start + len(inner)
            hit = any(begin < end and start < stop for begin, stop in spans)
            masked.append(line.replace(inner, _masked(inner, start, spans)) if hit else line)
            start = end
        return masked


def _masked(text: str, start: int, spans: Sequence[tuple[int, int]]) -> str:
    """The text, which begins at `start`, with a mask for each span that reaches into it."""
    pieces, at = [], 0
    for begin, stop in sorted(spans):
        begin, stop = max(begin - start, at), min(stop - start, len(text))
        if begin < stop:
            pieces += [text[at:begin], MASK]
            at = stop
    return "".join([*pieces, text[at:]])


def _all(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _parts(secret: str) -> Iterator[str]:
    """The secret, its lines and words, and the halves of a pair such as `key:secret`."""
    # Whoever uses one leaves off the space around it, and logs are read line by line.
    yield from (secret.strip(), *(line.strip() for line in secret.splitlines()))
    yield from secret.replace(":", " ").split()


def _forms(part: str) -> Iterator[str]:
    """The part, and what it looks like where programs have encoded it."""
    yield from (part, quote(part, safe=""), quote(part), quote_plus(part))
    yield _lower_escapes(quote(part, safe=""))
    yield from (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1])
    data = part.encode(errors="surrogatepass")
    yield from (data.hex(), data.hex().upper())
    for offset in range(3):
        coded = base64.b64encode(b"\0" * offset + data).decode()
        # At both ends stand characters that depend on the neighbours, too.
        core = coded[(offset * 8 + 5) // 6 : (offset + len(data)) * 8 // 6]
        yield from (core, core.replace("+", "-").replace("/", "_"))


def _lower_escapes(quoted: str) -> str:
    pieces = quoted.split("%")
    return "%".join([pieces[0], *(piece[:2].lower() + piece[2:] for piece in pieces[1:])])
