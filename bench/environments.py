"""Environments of the bench's own beside the project's, made once, by `uv`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
_SECONDS = 1800


class NotInstalled(Exception):
    """An environment could not be made; the message says why."""


def programs_of(name: str, *requirements: str) -> Path:
    """The folder of programs of `.venv-<name>`, which holds the requirements.

    Raises NotInstalled, and leaves no half-made environment behind.
    """
    place = ROOT / f".venv-{name}"
    stamp = place / "requirements.txt"
    wanted = "\n".join(requirements)
    if stamp.is_file() and stamp.read_text() == wanted:
        return place / "bin"
    print(f"installing {', '.join(requirements)} in {place.name}, once …", flush=True)
    uv, python = Path(sys.executable).with_name("uv"), place / "bin" / "python"
    for command in (
        [str(uv), "venv", "--quiet", "--clear", str(place), "--python", sys.executable],
        [str(uv), "pip", "install", "--quiet", "--python", str(python), *requirements],
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
    stamp.write_text(wanted)
    return place / "bin"


def _environment() -> dict[str, str]:
    """uv does not read pip's variable for folders of wheels by itself."""
    environment = dict(os.environ)
    if "PIP_FIND_LINKS" in environment:
        environment.setdefault("UV_FIND_LINKS", environment["PIP_FIND_LINKS"])
    return environment
