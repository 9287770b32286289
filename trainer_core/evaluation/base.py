"""What one model gave in an evaluation, and that of the base, which travels with checkpoints."""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer_core.publish.manifest import write_durably

BASE_FILE = "base_evaluation.json"
Groups = list[dict[str, list[Any]]]
"""Columns of rows, and perhaps further ones of other things, such as queries."""


@dataclass(frozen=True)
class Evaluated:
    """What one model gave: `measured` are its task's own measures by name, `groups` values of
    rows, `answers` texts to the questions of these rows."""

    measured: dict[str, float]
    groups: Groups
    answers: list[str] = field(default_factory=list)


class BaseEvaluation:
    """What the model before the first step gave; it travels with the checkpoints."""

    def __init__(self, work: Path) -> None:
        self._path = work / BASE_FILE

    def keep(self, evaluated: Evaluated) -> None:
        """Write it down."""
        write_durably(self._path, json.dumps(asdict(evaluated)).encode())

    def link_into(self, checkpoint: Path) -> None:
        """Give it to a checkpoint that is being written."""
        if self._path.is_file():
            try:
                os.link(self._path, checkpoint / BASE_FILE)
            except OSError:  # a file system that knows no hard links
                shutil.copyfile(self._path, checkpoint / BASE_FILE)

    def restore(self, checkpoint: Path) -> None:
        """Take it over from a checkpoint."""
        self._path.unlink(missing_ok=True)
        if (checkpoint / BASE_FILE).is_file():
            shutil.copyfile(checkpoint / BASE_FILE, self._path)

    def read(self) -> Evaluated | None:
        """None where the base was not evaluated."""
        return Evaluated(**json.loads(self._path.read_bytes())) if self._path.is_file() else None
