"""Runs the inspection of an upload as a process of its own, few at a time."""

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

from app.datasets.inspection import NO_MEMORY, Inspection, Problem
from app.errors import Unavailable

_TIMEOUT = 3600.0
_AT_ONCE = asyncio.Semaphore(2)
_ROOT = Path(__file__).resolve().parents[2]
_log = logging.getLogger(__name__)


async def inspect_upload(path: Path, name: str) -> Inspection:
    """Return what the file holds; raises Unavailable when that takes more than an hour."""
    async with _AT_ONCE:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app.datasets.inspection", str(path), name),
            cwd=_ROOT,
            env={"PATH": os.environ.get("PATH", ""), "PYTHONUTF8": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_TIMEOUT):
                answer, errors = await process.communicate()
        except TimeoutError as error:
            message = "looking through the file took more than an hour: split it"
            raise Unavailable(message, "inspection_timeout") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode == 0:
        return _parsed(answer)
    _log.warning("inspection ended with %s: %s", process.returncode, errors.decode()[-2000:])
    if process.returncode in (NO_MEMORY, -signal.SIGKILL):
        return _too_much(name)
    raise RuntimeError("the inspection of an upload failed; its error is logged above")


def _parsed(answer: bytes) -> Inspection:
    found = json.loads(answer)
    for kind in ("problems", "refused"):
        found[kind] = [Problem(**problem) for problem in found[kind]]
    return Inspection(**found)


def _too_much(name: str) -> Inspection:
    message = (
        f"{name} cannot be read within the memory of the service: one of its rows is very large. "
        "Write it as JSON Lines with smaller rows"
    )
    return Inspection(refused=[Problem(None, message)])
