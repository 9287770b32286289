"""Postgres, Valkey and the API as the embedded stack runs them, for benches that need no more."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polar.stack import spawn
from polar.stack.services import Postgres, SeaweedFS, Valkey, wait_ready

ROOT = Path(__file__).parent.parent
Service = Postgres | Valkey | SeaweedFS


@contextmanager
def process(command: spawn.Command, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, and stop it at the end."""
    started = spawn.start(command, log)
    try:
        yield started
    finally:
        spawn.stop(started, command)


@contextmanager
def up(services: Sequence[Service], log: Path) -> Iterator[None]:
    """Start services, each when the one before it is ready."""
    with ExitStack() as stack:
        for service in services:
            service.prepare()
            stack.enter_context(process(service.command(), log))
            wait_ready(service.is_ready, type(service).__name__, timeout=60)
        yield


@dataclass(frozen=True)
class Installed:
    """A migrated database: the variables with which the API serves it, and its first key."""

    variables: dict[str, str]
    key: str


def install(folder: Path, postgres: Postgres, valkey: Valkey, port: int, **more: str) -> Installed:
    """Lay the schema in the database `polar`; the API is to serve it on `port`."""
    postgres.ensure_database("polar")
    variables = {
        "POLAR_HOME": str(folder),
        "POLAR_DATABASE_URL": postgres.url(),
        "POLAR_BROKER_URL": valkey.url,
        "POLAR_PORT": str(port),
        "POLAR_RATE_LIMIT": "0",  # one key sends everything
        "PYTHONPATH": str(ROOT),
        **more,
    }
    _run_app("migrate", variables)
    return Installed(variables, _run_app("first-key", variables))


def _run_app(command: str, variables: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "app", command],
        cwd=ROOT,
        env={**spawn.basic_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


@contextmanager
def serving(variables: dict[str, str], log: Path) -> Iterator[int]:
    """Run the API; yields its pid when it answers."""
    port = int(variables["POLAR_PORT"])
    with process(spawn.Command([sys.executable, "-m", "app", "serve"], variables), log) as api:
        wait_ready(partial(answers, port), "the API", timeout=60)
        yield api.pid


def answers(port: int) -> bool:
    """Say whether something listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
