"""Reading server-sent events: lines in, frames out."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Frame:
    """One frame of a stream; `id` is the job's sequence number, None for frames without."""

    id: int | None
    body: dict[str, Any]

    @property
    def type(self) -> str:
        """`status`, `metrics`, `log`, `progress`, … or `end`, the last one."""
        return str(self.body.get("type", ""))

    @property
    def data(self) -> dict[str, Any]:
        """The event's own fields."""
        found = self.body.get("data", {})
        return found if isinstance(found, dict) else {}


@dataclass
class _Draft:
    id: int | None = None
    data: list[str] = field(default_factory=list)


def lines_of(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a stream that comes in pieces; a cut last line is left out.

    They end at a line feed, with or without a carriage return, and nowhere else: an event's text
    may hold U+2028 and its like.
    """
    begun = ""
    for text in texts:
        *whole, begun = (begun + text).split("\n")
        for line in whole:
            yield line.removesuffix("\r")


def frames(lines: Iterable[str]) -> Iterator[Frame]:
    """Yield the frames in `lines`; comments (heartbeats) and a cut last frame are left out."""
    draft = _Draft()
    for line in lines:
        if not line:
            if draft.data:
                yield Frame(draft.id, json.loads("\n".join(draft.data)))
            draft = _Draft()
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            draft.data.append(value)
        elif name == "id" and value.isdigit():
            draft.id = int(value)
