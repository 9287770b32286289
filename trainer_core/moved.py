"""Folders that lie elsewhere than specs say: those of an installation restored somewhere else."""

from collections.abc import Mapping
from pathlib import Path


def present_place(path: str, moved: Mapping[str, str]) -> str:
    """Return where a path lies now; `moved` holds former folders and their present ones.

    Nothing is looked at: whether the place may be read is judged afterwards, links followed.
    """
    for former, present in moved.items():
        if Path(path).is_relative_to(former):
            return str(Path(present) / Path(path).relative_to(former))
    return path
