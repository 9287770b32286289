"""Reading server-sent events: text in, frames out."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Frame:
    """One frame of a stream; `id` is None for frames that are not stored: they come once."""

    id: str | None
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

    @property
    def seq(self) -> int | None:
        """Its number within its job; None for what is not stored."""
        found = self.body.get("seq")
        return None if found is None else int(found)

    @property
    def job_id(self) -> str | None:
        """Whose event it is."""
        return self.body.get("job_id")

    @property
    def time(self) -> datetime | None:
        """When it happened; None for what is not stored."""
        found = self.body.get("time")
        return None if found is None else datetime.fromisoformat(found)


class Decoder:
    """Takes the text of one connection in pieces.

    A line ends at a line feed, with or without a carriage return, and nowhere else: an event's
    text may hold U+2028 and its like. Comments (heartbeats) and a cut last frame are left out.
    `newest` is the last id of all, also of a frame that has nothing else.
    """

    def __init__(self) -> None:
        self.newest: str | None = None
        self._begun = ""
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, text: str) -> Iterator[Frame]:
        """Yield the frames that this piece completes; raises ValueError for what is no event."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            yield from self._line(line.removesuffix("\r"))

    def _line(self, line: str) -> Iterator[Frame]:
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        elif name == "id":
            self._id = self.newest = value.removeprefix(" ")
        elif not line:
            said, name_of_it, self._data, self._id = self._data, self._id, [], None
            if said:
                yield Frame(name_of_it, _object("\n".join(said)))


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if isinstance(found, dict):
        return found
    raise ValueError(f"an event is an object, and not {text[:40]!r}")
