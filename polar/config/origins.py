"""Where a part of a composed spec came from: an override, or one of the files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polar.config.overrides import Override
from polar.config.places import shown

Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class Source:
    """A file that was composed: what it says stands below `package`."""

    file: Path
    package: tuple[str, ...]
    document: Any

    def says(self, path: Path_) -> bool:
        """Whether the file itself has something at a place of the spec."""
        if path[: len(self.package)] != self.package:
            return False
        here = self.document
        for part in path[len(self.package) :]:
            if not _has(here, part):
                return False
            here = here[part]
        return True


def _has(holder: Any, part: str | int) -> bool:
    if isinstance(holder, list):
        return isinstance(part, int) and part < len(holder)
    return isinstance(holder, dict) and part in holder


def origin(path: Path_, overrides: Sequence[Override], sources: Sequence[Source]) -> str:
    """Return what set a place of the spec last: the override as it was written, or a file's name.

    A field that is missing came from nowhere: then it is the block around it that is told.
    """
    for end in range(len(path), 0, -1):
        part = path[:end]
        names = tuple(map(str, part))
        for override in reversed(overrides):
            if not override.is_group and names[: len(override.path)] == override.path:
                return override.text
        for source in reversed(sources):
            if source.says(part):
                return shown(source.file)
    return ""
