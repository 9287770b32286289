"""Starts the API as its own process, as users do, and finds it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine, create_engine, text

from polar.stack.ports import free_ports
from tests.services import ROOT, S3, wait_until


@dataclass
class Api:
    """A running API with the first key, and how to stop it."""

    url: str
    key: str
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes]
    client: httpx.Client = field(init=False)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.with_key(self.key)
        self.engine = create_engine(self.environment["POLAR_DATABASE_URL"])

    def with_key(self, key: str | None) -> httpx.Client:
        """Return a client that sends this key, or none."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """Ask the API's database."""
        with self.engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(query), values)]

    def write(self, statement: str, **values: object) -> None:
        """Change the API's database behind its back, as workers do."""
        with self.engine.begin() as connection:
            connection.execute(text(statement), values)

    def role(self, role: str) -> httpx.Client:
        """Return a client with a new key of this role."""
        made = self.client.post("/api-keys", json={"name": role, "role": role})
        assert made.status_code == 201, made.text
        return self.with_key(made.json()["key"])


def environment(database_url: str, valkey_url: str, s3: S3 | None, home: Path) -> dict[str, str]:
    """Return the variables of a process of the service."""
    store = s3 and {
        "S3_ENDPOINT": s3.endpoint,
        "S3_ACCESS_KEY": s3.access_key,
        "S3_SECRET_KEY": s3.secret_key,
        "S3_BUCKET": s3.bucket,
    }
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "POLAR_HOME": str(home),
        "POLAR_DATABASE_URL": database_url,
        "POLAR_BROKER_URL": valkey_url,
        "POLAR_RATE_LIMIT": "0",  # the tests of a file share a key
        **(store or {}),
    }


def run_app(command: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `python -m app <command>` to its end."""
    arguments = [sys.executable, "-m", "app", command]
    return subprocess.run(
        arguments, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False
    )


@contextmanager
def running(variables: dict[str, str], key: str = "") -> Iterator[Api]:
    """Serve the API on a free port until the block ends; stops it as a supervisor would."""
    port = free_ports(1)[0]
    home = Path(variables["POLAR_HOME"])
    log = home / f"api-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve"],
            cwd=ROOT,
            env={**variables, "POLAR_PORT": str(port)},
            stdout=output,
            stderr=output,
        )
    api = Api(f"http://127.0.0.1:{port}", key, variables, log, process)
    try:
        wait_until(lambda: _answers(api), timeout=60)
        yield api
    finally:
        api.client.close()
        api.engine.dispose()
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _answers(api: Api) -> bool:
    if api.process.poll() is not None:
        raise AssertionError(api.log.read_text())
    try:
        return httpx.get(f"{api.url}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
