"""The containers' commands, with exactly their variables, run outside of containers."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from polar.stack import spawn
from polar.stack.ports import free_ports
from polar.stack.private import secret
from polar.stack.readiness import http_ok, worker_seen
from polar.stack.services import Postgres, SeaweedFS, Valkey
from polar.stack.spawn import Command
from tests.services import ROOT, wait_until

WITH_A_ROW = ("reconciler", "control", "prepare")


class Containers:
    """Starts what docker-compose.yml says, with the names of other containers made addresses."""

    def __init__(self, services: dict[str, Any], folder: Path, addresses: dict[str, str]) -> None:
        self.services = services
        self.folder = folder
        self.addresses = addresses

    def local(self, text: str) -> str:
        for name, address in self.addresses.items():
            text = text.replace(name, address)
        return text

    def command(self, name: str, arguments: list[str] | None = None) -> Command:
        """The container's own command, or another one in its environment."""
        container = self.services[name]
        words = arguments or container["command"]
        assert words[0] == "python"
        environment = {key: self.local(value) for key, value in container["environment"].items()}
        return Command(
            [sys.executable, *(self.local(word) for word in words[1:])],
            {**environment, "PYTHONPATH": str(ROOT)},
        )

    def run(
        self, name: str, arguments: list[str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(name, arguments)
        return subprocess.run(
            command.arguments,
            env={**spawn.basic_environment(), **command.environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(self, name: str, stack: ExitStack) -> subprocess.Popen[bytes]:
        command = self.command(name)
        process = spawn.start(command, self.folder / "logs" / f"{name}.log")
        stack.callback(spawn.stop, process, command, 20)
        return process


@pytest.fixture
def containers(
    postgres: Postgres, valkey: Valkey, seaweed: SeaweedFS, valkey_url: str, tmp_path: Path
) -> Iterator[Containers]:
    postgres.ensure_database("polar")
    access, secret_key = seaweed.keys
    variables = {
        "POSTGRES_PASSWORD": postgres.password,
        "VALKEY_PASSWORD": valkey_url.split(":")[2].partition("@")[0],
        "S3_ACCESS_KEY": access,
        "S3_SECRET_KEY": secret_key,
        "POLAR_KEY": "k" * 43,
    }
    done = subprocess.run(
        [Path(sysconfig.get_path("scripts")) / "docker-compose", "config", "--format", "json"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    secret(tmp_path / "secrets" / "key")
    api = free_ports(1)[0]
    addresses = {
        "postgres:5432": f"127.0.0.1:{postgres.port}",
        "valkey:6379": f"127.0.0.1:{valkey.port}",
        "http://s3:8333": seaweed.endpoint,
        "/run/secrets": str(tmp_path / "secrets"),
        "/data": str(tmp_path),
        "0.0.0.0": "127.0.0.1",  # noqa: S104 - replaced
        "8010": str(api),
    }
    yield Containers(json.loads(done.stdout)["services"], tmp_path, addresses)
    with postgres.connect() as connection:
        connection.execute("DROP DATABASE polar WITH (FORCE)")


def test_the_containers_commands_work(containers: Containers, postgres: Postgres) -> None:
    migrated = containers.run("migrate")
    assert migrated.returncode == 0, migrated.stderr
    key = containers.run("api", ["python", "-m", "app", "first-key"]).stdout.strip()
    assert key
    seen_check = containers.services["reconciler"]["healthcheck"]["test"][1:]
    assert containers.run("reconciler", seen_check).returncode == 1  # nobody has a row yet
    url = containers.local("http://127.0.0.1:8010")
    with ExitStack() as stack:
        containers.start("api", stack)
        beat = containers.start("beat", stack)
        started = {name: containers.start(name, stack) for name in WITH_A_ROW}
        wait_until(lambda: http_ok(f"{url}/healthz"), timeout=90)
        health = containers.services["api"]["healthcheck"]["test"][1:]
        assert containers.run("api", health).returncode == 0
        answer = httpx.get(f"{url}/jobs", headers={"Authorization": f"Bearer {key}"}, timeout=20)
        assert answer.json()["items"] == []
        for process in started.values():
            wait_until(
                lambda pid=process.pid: worker_seen(lambda: postgres.connect("polar"), pid),
                timeout=90,
            )
        assert containers.run("reconciler", seen_check).returncode == 0
        assert beat.poll() is None
    assert [process.returncode for process in started.values()] == [0, 0, 0]
