"""Environments of the bench's own beside the project's, made once, by `uv`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
_SECONDS = 1800


class NotInstalled(Exception):
    """An environment could not be made; the message says why."""


def programs_of(name: str, *requirements: str, without: Sequence[str] = ()) -> Path:
    """The folder of programs of `.venv-<name>`, which holds the requirements.

    What they require of packages in `without` is passed over. Raises NotInstalled, and leaves no
    half-made environment behind.
    """
    place = ROOT / f".venv-{name}"
    stamp, overrides = place / "requirements.txt", place / "overrides.txt"
    wanted = "\n".join((*requirements, *(f"without {package}" for package in without)))
    if stamp.is_file() and stamp.read_text() == wanted:
        return place / "bin"
    print(f"installing {', '.join(requirements)} in {place.name}, once …", flush=True)
    uv, python = Path(sys.executable).with_name("uv"), place / "bin" / "python"
    install = [str(uv), "pip", "install", "--quiet", "--python", str(python), *requirements]
    for command in (
        [str(uv), "venv", "--quiet", "--clear", str(place), "--python", sys.executable],
        [*install, "--overrides", str(overrides)],
    ):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=_environment(),
            check=False,
        )
        if done.returncode:
            shutil.rmtree(place, ignore_errors=True)
            raise NotInstalled(done.stderr.strip() or done.stdout.strip())
        never = (f"{package}; sys_platform == 'never'\n" for package in without)
        overrides.write_text("".join(never))
    stamp.write_text(wanted)
    return place / "bin"


def _environment() -> dict[str, str]:
    """uv does not read pip's variable for folders of wheels by itself."""
    environment = dict(os.environ)
    if "PIP_FIND_LINKS" in environment:
        environment.setdefault("UV_FIND_LINKS", environment["PIP_FIND_LINKS"])
    return environment
