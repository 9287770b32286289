"""A worker that is told to end hands back what it started: its supervisors are asked and awaited.

In a container everything else ends with the worker, so it must be the last to go.
"""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from app.settings import Settings
from worker.proctree import Identity, identify, is_alive, send
from worker.supervisor import NAME

# Beyond the trainers' own grace: what uploading the last checkpoints and saying so may take.
MARGIN = 25.0
_log = logging.getLogger(__name__)


def hand_back(settings: Settings, *prefixes: str) -> int:
    """Have the supervisors of ids with these prefixes stop whole; returns how many there were.

    Waits until they have ended, at most for the grace time and a margin: the lease of one that
    has not is then left to run out.
    """
    asked = list(supervisors(settings, *prefixes))
    for who in asked:
        send(who, signal.SIGTERM)
    if asked:
        _log.info("%d supervisors are asked to hand back", len(asked))
    deadline = time.monotonic() + settings.grace + MARGIN
    while any(is_alive(who) for who in asked) and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(asked)


def supervisors(settings: Settings, *prefixes: str) -> Iterator[Identity]:
    """Find the running supervisors of this data folder by their name and their log."""
    logs = (settings.home / "logs" / "supervisors").resolve()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            process = Path(entry.path)
            log = (process / "fd" / "1").readlink()
            name = (process / "comm").read_text(encoding="utf-8").strip()
            who = identify(int(entry.name))
            if who and name == NAME and log.parent == logs and log.name.startswith(prefixes):
                yield who
