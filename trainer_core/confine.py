"""What a supervised trainer gives up before it reads a byte of anybody's data.

Files that it makes are its user's alone; no core dump can hold a secret; no privileges are gained;
of the service's data folder it keeps its own work, prepared data and caches, and it can neither
read the environment of the service's processes nor signal them (`trainer_core.landlock`).
"""

import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer_core import landlock

KEEP_OUT = "POLAR_KEEP_OUT"
"""Variable with the service's data folder; set: the process confines itself."""

MEMORY = "POLAR_MEMORY_LIMIT"
"""Variable with the most bytes of private memory; unset: no limit of ours."""

_SHARED = ("hub", "prepared", "cache", "models")


def confine(launch: Path) -> None:
    """Give up what a run of this launch file does not need; nothing outside of a service.

    Says so on stderr where the kernel has no way of giving up files.
    """
    home = os.environ.get(KEEP_OUT)
    if home is None:
        return
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    landlock.shed_privileges()
    if limit := os.environ.get(MEMORY):
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
    for name in _SHARED:
        with suppress(OSError):
            (Path(home) / name).mkdir(exist_ok=True)
    tempfile.tempdir = None  # what an ancestor found may be out of reach
    try:
        landlock.restrict_to(set(_kept(Path(home).resolve(), launch)))
    except OSError as error:
        sys.stderr.write(f"files are not confined on this kernel: {error}\n")


def _kept(home: Path, launch: Path) -> Iterator[str]:
    """Everything outside of `home`, and of it the shared folders and what the launch names.

    Never `home` itself or what lies above it, also where a link leads there.
    """
    above = {str(home), *map(str, home.parents)}
    named = (home / name for name in _SHARED)
    inside = (launch.parent, *named, *_own_code(), *_named(launch))
    for real in (*_around(home), *map(os.path.realpath, inside)):
        if real not in above:
            yield str(real)


def _around(home: Path) -> Iterator[str]:
    """What lies beside `home` and beside the folders above it, links followed.

    There may be thousands in a folder like /tmp: only the links among them are looked up.
    """
    for folder in home.parents:
        with suppress(OSError), os.scandir(folder) as entries:  # else nothing of it is in reach
            for entry in entries:
                yield os.path.realpath(entry.path) if entry.is_symlink() else entry.path


def _own_code() -> Iterator[Path]:
    yield Path(sys.prefix)
    yield Path(__file__).parents[1]
    yield Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")


def _named(launch: Path) -> Iterator[Path]:
    """Every path that a launch names; one that cannot be read is refused later, in words."""
    try:
        paths = json.loads(launch.read_bytes())["paths"]
    except (OSError, ValueError, LookupError, TypeError):
        return
    yield from (Path(text) for text in _texts(paths))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value and "\0" not in value:
        yield value
    elif isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _texts(member)
