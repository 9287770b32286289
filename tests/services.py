"""Helpers of the tests: waiting for a condition, and databases on the session's Postgres."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from polar.stack.services import Postgres

T = TypeVar("T")
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class S3:
    """An S3 endpoint with its keys and a bucket that only this test uses."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    region: str = "us-east-1"


def wait_until(condition: Callable[[], T], timeout: float = 30.0, every: float = 0.02) -> T:
    """Return the first truthy value of `condition()`; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"still not true after {timeout:.0f} s: {condition}")
        time.sleep(every)


def command_lines() -> list[str]:
    """Return the command line of every process of the machine, as any user can see them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process ended meanwhile
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def migrate(postgres: Postgres, database: str) -> None:
    """Lay the schema in `database` as the stack does it, with `python -m app migrate`."""
    if not (ROOT / "app" / "__main__.py").exists():
        return
    environment = {**os.environ, "POLAR_DATABASE_URL": postgres.url(database)}
    done = subprocess.run(
        [sys.executable, "-m", "app", "migrate"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
