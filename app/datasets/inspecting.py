"""Runs the inspection of an upload as a process of its own, few at a time."""

import asyncio
import json
import logging
import signal
from pathlib import Path

from anyio import to_thread

from app.datasets import limited
from app.datasets.inspection import NO_MEMORY, Inspection, Problem
from app.errors import Unavailable

_TIMEOUT = 3600.0
_AT_ONCE = asyncio.Semaphore(2)
_log = logging.getLogger(__name__)


async def inspect_upload(path: Path, name: str) -> Inspection:
    """Return what the file holds; raises Unavailable when that takes more than an hour."""
    async with _AT_ONCE:
        output = path.with_name("inspection")
        ended = await limited.run(
            "app.datasets.inspection", str(path), name, output=output, seconds=_TIMEOUT
        )
    if ended.code == 0:
        return await to_thread.run_sync(_parsed, output)
    if ended.code is None:
        message = "looking through the file took more than an hour: split it"
        raise Unavailable(message, "inspection_timeout")
    _log.warning("inspection ended with %s: %s", ended.code, ended.errors)
    if ended.code in (NO_MEMORY, -signal.SIGKILL):
        return _too_much(name)
    raise RuntimeError("the inspection of an upload failed; its error is logged above")


def _parsed(output: Path) -> Inspection:
    found = json.loads(output.read_bytes())
    for kind in ("problems", "refused"):
        found[kind] = [Problem(**problem) for problem in found[kind]]
    return Inspection(**found)


def _too_much(name: str) -> Inspection:
    message = (
        f"{name} cannot be read within the memory of the service: one of its rows is very large. "
        "Write it as JSON Lines with smaller rows"
    )
    return Inspection(refused=[Problem(None, message)])
