"""Shows the first rows of a file: `python -m app.datasets.first_rows <path> <name> <limit> <cut>`.

It runs as a process of its own, because a few kilobytes of gzip may hold a row of gigabytes. Each
row is a line of JSON on stdout as soon as it is read, so that those before such a one are shown.
`cut`: the file is the head of a longer one.
"""

import json
import math
import resource
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from trainer_core.data.readers import File, read_file
from trainer_core.data.rows import Row
from trainer_core.errors import InvalidData

NO_MEMORY = 3
MOST_TEXT = 2000  # characters that are shown of one text
MOST_ROW = 16_000  # and of a row
_DEEPEST = 20
_MEMORY = 2**30
_SECONDS = 20
_MORE = "…"


class _Shortener:
    """Copies the values of one row as far as they are shown, in what JSON can say."""

    def __init__(self) -> None:
        self.cut = False
        self._left = MOST_ROW

    def shown(self, value: Any, depth: int = 0) -> Any:
        """Return the value, or what there is room for."""
        self._left -= 1
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict | list) and depth >= _DEEPEST:
            self.cut = True
            return _MORE
        if isinstance(value, dict):
            pairs = self._fitting(value.items())
            return {self._text(str(key)): self.shown(item, depth + 1) for key, item in pairs}
        if isinstance(value, list):
            return [self.shown(item, depth + 1) for item in self._fitting(value)]
        return self._number(value)

    def _text(self, value: str) -> str:
        room = max(0, min(MOST_TEXT, self._left))
        self._left -= min(len(value), room)
        if len(value) > room:
            self.cut = True
            value = value[:room] + _MORE
        return value.encode("utf-8", "replace").decode()  # half characters are no JSON

    def _number(self, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return json.dumps(value)
        self._left -= len(repr(value))
        return value

    def _fitting(self, items: Any) -> Iterator[Any]:
        for item in items:
            if self._left <= 0:
                self.cut = True
                return
            yield item


def _shown(row: Row) -> dict[str, Any]:
    shortener = _Shortener()
    values = shortener.shown(row.values)
    problem = row.problem and row.problem[:MOST_TEXT]
    place = row.place.number
    return {"line": place, "values": values, "problem": problem, "shortened": shortener.cut}


def _first(file: File, limit: int, *, cut: bool) -> Iterator[Row]:
    """Yield the rows; the line on which a head ends is none."""
    broken: list[Row] = []
    try:
        for row in islice(read_file(file), limit):
            yield from broken
            broken = [row] if cut and row.problem else []
            if not broken:
                yield row
    except InvalidData:
        if not cut:  # a whole file was readable when it was uploaded
            raise


def main(path: str, name: str, limit: str, cut: str) -> int:
    """Print the rows; exits with NO_MEMORY at one that is too large for it."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    try:
        for row in _first(File("file", Path(path), name), int(limit), cut=cut == "cut"):
            sys.stdout.write(json.dumps(_shown(row)) + "\n")
            sys.stdout.flush()
    except MemoryError:
        return NO_MEMORY
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
