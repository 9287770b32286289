"""Folders that a launch names: made ready, or refused with the reason, before anything is computed
and before anything in them is touched."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer_core.errors import InvalidSpec

FIELD = "paths.work"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FOLDERS = ("checkpoints", "prepared", "best", "evaluation", "model")
_FILES = ("events.jsonl", "exit.json", "base_evaluation.json")
_REPLACED = {
    "model": frozenset[str](),
    "best": frozenset({"weights"}),
    "evaluation": frozenset({"report.json", "answers.jsonl"}),
}
"""Folders that a run replaces as a whole, and what may lie in them where no run has been."""
_LOCK = ".run.lock"


@contextmanager
def work_folder(folder: Path) -> Iterator[None]:
    """Make a run's work folder and hold it: two runs in one would delete each other's files.

    Raises InvalidSpec where it cannot be one, or another run is in it; OSError on a full disk.
    """
    make_folder(folder, FIELD)
    for names, is_right, kind in (
        (_FOLDERS, Path.is_dir, "a folder"),
        (_FILES, Path.is_file, "a file"),
    ):
        for path in (folder / name for name in names):
            if os.path.lexists(path) and not is_right(path):
                raise refused(path, f"must be {kind}: it is something else", FIELD)
    if not (folder / "events.jsonl").exists():
        for name, own in _REPLACED.items():
            require_own(folder / name, own, FIELD)
    # Not inherited by what is forked: ranks that are still dying do not keep the next run out.
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise refused(folder, "is in use by another run: wait for its end", FIELD) from error
        yield


def make_folder(folder: Path, field: str) -> None:
    """Make a folder, or raise InvalidSpec where nothing can be written; OSError on a full disk."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise refused(folder, "is a file", field) from error
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise refused(folder, f"cannot be made ({error.strerror})", field) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise refused(folder, "cannot be written to", field)


def require_own(folder: Path, names: frozenset[str], field: str) -> None:
    """Raise InvalidSpec unless `folder` may be replaced: it is not there, or a folder that holds
    nothing but `names`."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise refused(folder, "is no folder", field)
    if strange := sorted({path.name for path in folder.iterdir()} - names):
        raise refused(folder, f"holds what is not ours and would be lost: {strange[0]}", field)


def refused(path: Path, why: str, field: str) -> InvalidSpec:
    """The error for a place that cannot be used; `--out` is the field's name on a command line."""
    return InvalidSpec(f"{field}: '{path}' {why}; choose another folder (--out)", field)
