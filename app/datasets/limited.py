"""Runs a module of ours that reads an upload: a process that may take time and memory, we not."""

import asyncio
import os
import sys
from pathlib import Path
from typing import BinaryIO, NamedTuple

_ROOT = Path(__file__).resolve().parents[2]


class Ended(NamedTuple):
    """How the process ended; `code` is None when its time was over, negative for a signal."""

    code: int | None
    errors: str


async def run(module: str, *arguments: str, output: Path, seconds: float) -> Ended:
    """Run `python -m <module>`, its stdout in a new file; it is killed when its time is over."""
    with _new_file(output) as stdout:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            cwd=_ROOT,
            env={"PATH": os.environ.get("PATH", ""), "PYTHONUTF8": "1"},
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
        )
    try:
        async with asyncio.timeout(seconds):
            _, errors = await process.communicate()
    except TimeoutError:
        return Ended(None, "")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ended(process.returncode, errors.decode(errors="replace")[-2000:])


def _new_file(path: Path) -> BinaryIO:
    return path.open("xb")
