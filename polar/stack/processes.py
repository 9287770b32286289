"""The one table of processes: what runs, with which variables, and in which order.

`docker-compose.yml` runs the same rows, one container each, and a test compares the two.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from polar.stack.home import Home
from polar.stack.ports import LOOPBACK
from polar.stack.private import secret, write_private
from polar.stack.readiness import http_ok, listens, socket_answers, worker_seen
from polar.stack.services import Postgres, SeaweedFS, SeaweedPorts, ServiceFailed, Valkey
from polar.stack.spawn import Command, basic_environment

DATABASE = ("POLAR_DATABASE_URL",)
BROKER = ("POLAR_BROKER_URL",)
STORE = (
    "POLAR_S3_ENDPOINT",
    "POLAR_S3_ACCESS_KEY",
    "POLAR_S3_SECRET_KEY",
    "POLAR_S3_BUCKET",
    "POLAR_S3_REGION",
)
FOLDERS = ("POLAR_MODEL_FOLDERS", "POLAR_MOVED_FOLDERS")
SERVICE = ("POLAR_HOME", *DATABASE, *BROKER, *STORE, "POLAR_SECRET_KEY_FILE", *FOLDERS)
ADDRESS = ("POLAR_HOST", "POLAR_PORT", "POLAR_AUTH", "POLAR_MLFLOW_URL")
HOST = ("POLAR_WARM_SOCKET", "HF_HOME")

SERVICES, SCHEMA, CORE, WORKERS, TRACKING = range(5)
SEAWEED_PORTS = tuple(SeaweedPorts.__dataclass_fields__)
PORTS = ("api", "postgres", "valkey", "mlflow", *(f"s3_{name}" for name in SEAWEED_PORTS))


@dataclass(frozen=True)
class Entry:
    """One row: a Python program of ours, or a service that answers on a port.

    A process starts when every required one of a lower `order` is ready, and stops before them.
    """

    name: str
    arguments: tuple[str, ...]
    variables: tuple[str, ...]
    order: int
    ready: Literal["runs", "exits", "http", "socket", "row"] = "runs"
    required: bool = True
    timeout: float = 90.0


TABLE = (
    Entry("migrate", ("-m", "app", "migrate"), ("POLAR_HOME", *DATABASE), SCHEMA, "exits"),
    Entry("api", ("-m", "app", "serve"), (*SERVICE, *ADDRESS), CORE, "http"),
    Entry("reconciler", ("-m", "worker", "reconciler"), (*SERVICE, *ADDRESS[2:]), CORE, "row"),
    Entry(
        "warm",
        ("-m", "worker", "warm"),
        ("POLAR_HOME", "POLAR_WARM_SOCKET", "HF_HOME"),
        WORKERS,
        "socket",
        required=False,
        timeout=180,
    ),
    Entry("control", ("-m", "worker", "celery", "control"), (*SERVICE, *HOST), WORKERS, "row"),
    Entry("prepare", ("-m", "worker", "celery", "prepare"), (*SERVICE, *HOST), WORKERS, "row"),
    Entry("worker", ("-m", "worker", "celery", "host"), (*SERVICE, *HOST), WORKERS, "row"),
    Entry("beat", ("-m", "worker", "beat"), SERVICE, WORKERS),
    Entry(
        "mlflow",
        (
            *("-m", "mlflow", "server", "--workers", "1"),
            *("--host", "$MLFLOW_HOST", "--port", "$MLFLOW_PORT"),
            *("--artifacts-destination", "s3://$POLAR_S3_BUCKET/mlflow"),
            *("--allowed-hosts", "mlflow:*,localhost:*,127.0.0.1:*"),
        ),
        (
            *("MLFLOW_BACKEND_STORE_URI", "MLFLOW_S3_ENDPOINT_URL"),
            *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"),
            *("MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION"),
            *("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"),
        ),
        TRACKING,
        "http",
        required=False,
        timeout=300,
    ),
)

_PASSED_ON = ("POLAR_", "HF_", "CUDA_", "NVIDIA_", "OMP_", "MKL_")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True)
class Process:
    """A row made concrete: what the supervisor starts and how it asks for readiness."""

    name: str
    command: Command
    order: int
    is_ready: Callable[[int], bool] | None  # asked with the process's pid; None: ready at once
    once: bool = False
    required: bool = True
    timeout: float = 60.0
    prepare: Callable[[], None] | None = None
    address: str | None = None
    ports: tuple[tuple[str, int], ...] = ()  # addresses and ports that it listens on


@dataclass(frozen=True)
class Stack:
    """Everything that the rows depend on: the data folder, ports, and who may come in."""

    home: Home
    ports: dict[str, int]
    identity: str
    host: str = LOOPBACK
    auth: Literal["keys", "none"] = "keys"
    overrides: dict[str, str] = field(default_factory=dict)

    @cached_property
    def postgres(self) -> Postgres:
        """The database server."""
        return Postgres(
            self.home.path / "postgres", self.home.secrets / "postgres", self.ports["postgres"]
        )

    @cached_property
    def valkey(self) -> Valkey:
        """The broker."""
        return Valkey(self.home.path / "valkey", self.home.secrets / "valkey", self.ports["valkey"])

    @cached_property
    def s3(self) -> SeaweedFS:
        """The object store."""
        ports = SeaweedPorts(**{name: self.ports[f"s3_{name}"] for name in SEAWEED_PORTS})
        return SeaweedFS(self.home.path / "s3", self.home.secrets / "s3", ports)

    @property
    def url(self) -> str:
        """Where clients of this machine reach the API."""
        host = LOOPBACK if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 - compared
        return f"http://{f'[{host}]' if ':' in host else host}:{self.ports['api']}"

    @property
    def mlflow_url(self) -> str:
        """Where MLflow answers."""
        return f"http://{LOOPBACK}:{self.ports['mlflow']}"

    @property
    def key_file(self) -> Path:
        """The first API key, for the people of this machine."""
        return self.home.secrets / "api-key"

    def model_folders(self) -> list[str]:
        """Return the folders that models may be read from: ours, and those of the settings."""
        given = self.home.settings().get("model_folders")
        extra = [str(folder) for folder in given] if isinstance(given, list) else []
        if "POLAR_MODEL_FOLDERS" in os.environ:
            extra = json.loads(os.environ["POLAR_MODEL_FOLDERS"])
        return [str(self.home.models), *extra]

    def moved_folders(self) -> dict[str, str]:
        """Return where models lay before this folder was restored, each with where they do now."""
        given: dict[str, str] = json.loads(os.environ.get("POLAR_MOVED_FOLDERS", "{}"))
        return {f: str(self.home.models) for f in self.home.model_places()[1:]} | given

    @cached_property
    def values(self) -> dict[str, str]:
        """Every variable that a row may name; `overrides` come last."""
        access, secret_key = self.s3.keys
        secret(self.home.secrets / "key")
        return {
            "POLAR_HOME": str(self.home.path),
            "POLAR_DATABASE_URL": self.postgres.url("polar"),
            "POLAR_BROKER_URL": self.valkey.url,
            "POLAR_S3_ENDPOINT": self.s3.endpoint,
            "POLAR_S3_ACCESS_KEY": access,
            "POLAR_S3_SECRET_KEY": secret_key,
            "POLAR_S3_BUCKET": self.s3.bucket,
            "POLAR_S3_REGION": self.s3.region,
            "POLAR_SECRET_KEY_FILE": str(self.home.secrets / "key"),
            "POLAR_MODEL_FOLDERS": json.dumps(self.model_folders()),
            "POLAR_MOVED_FOLDERS": json.dumps(self.moved_folders()),
            "POLAR_HOST": self.host,
            "POLAR_PORT": str(self.ports["api"]),
            "POLAR_AUTH": self.auth,
            "POLAR_MLFLOW_URL": self.mlflow_url,
            "POLAR_WARM_SOCKET": str(self.home.warm_socket()),
            "HF_HOME": str(self.home.path / "hub"),
            "MLFLOW_HOST": LOOPBACK,
            "MLFLOW_PORT": str(self.ports["mlflow"]),
            "MLFLOW_BACKEND_STORE_URI": self.postgres.url("mlflow"),
            "MLFLOW_S3_ENDPOINT_URL": self.s3.endpoint,
            "MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE": "path",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
            "AWS_ACCESS_KEY_ID": access,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_DEFAULT_REGION": self.s3.region,
            **self.overrides,
        }

    def environment(self, entry: Entry) -> dict[str, str]:
        """Return a row's own variables, and for all but the fork server the user's settings."""
        # What the libraries read at import must be the same in the fork server as in trainers.
        families = {"warm": ("HF_",), "mlflow": ()}.get(entry.name, _PASSED_ON)
        proxies = () if entry.name in ("warm", "mlflow") else _PROXIES
        passed = {
            name: value
            for name, value in os.environ.items()
            if (name.startswith(families) and name != "HF_TOKEN") or name in proxies
        }
        own = {name: self.values[name] for name in entry.variables}
        return {**passed, **own, "POLAR_STACK_PID": self.identity}

    def command(self, entry: Entry) -> Command:
        """Return a row's command with the values filled in; no value there is a secret."""
        arguments = []
        for argument in entry.arguments:
            for name in ("POLAR_S3_BUCKET", "MLFLOW_HOST", "MLFLOW_PORT"):
                argument = argument.replace(f"${name}", self.values[name])
            arguments.append(argument)
        return Command([sys.executable, *arguments], self.environment(entry))

    def store_first_key(self) -> None:
        """Have the service make its first API key, once, and keep it where only we can read."""
        if self.auth == "none":
            return
        api = next(entry for entry in TABLE if entry.name == "api")
        made = subprocess.run(
            [sys.executable, "-m", "app", "first-key"],
            env={**basic_environment(), **self.environment(api)},
            cwd=self.home.run,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if made.returncode:
            raise ServiceFailed(f"the first API key could not be made: {made.stderr.strip()}")
        if made.stdout.strip():
            write_private(self.key_file, made.stdout.strip())

    def _readiness(self, entry: Entry) -> Callable[[int], bool] | None:
        health = {"api": f"{self.url}/healthz", "mlflow": f"{self.mlflow_url}/health"}
        match entry.ready:
            case "http":
                port = self.ports[entry.name]
                return lambda pid: http_ok(health[entry.name]) and listens(pid, port)
            case "row":
                return lambda pid: worker_seen(lambda: self.postgres.connect("polar"), pid)
            case "socket":
                return lambda pid: socket_answers(self.home.warm_socket())  # noqa: ARG005
            case _:
                return None

    def _preparation(self, entry: Entry) -> Callable[[], None] | None:
        return {
            "migrate": lambda: self.postgres.ensure_database("polar"),
            "mlflow": lambda: self.postgres.ensure_database("mlflow"),
            "api": self.store_first_key,
        }.get(entry.name)

    def services(self) -> list[Process]:
        """Return the services' own rows."""
        found: list[Process] = []
        for name, service, (port, *others) in (
            ("postgres", self.postgres, [self.ports["postgres"]]),
            ("valkey", self.valkey, [self.ports["valkey"]]),
            ("s3", self.s3, [self.ports[f"s3_{name}"] for name in SEAWEED_PORTS]),
        ):
            found.append(
                Process(
                    name,
                    service.command(),
                    SERVICES,
                    lambda pid, service=service: service.is_ready(),  # type: ignore[misc]  # noqa: ARG005
                    prepare=service.prepare,
                    address=f"{LOOPBACK}:{port}",
                    ports=tuple((LOOPBACK, each) for each in (port, *others)),
                )
            )
        return found

    def processes(self) -> list[Process]:
        """Return everything that the embedded stack runs."""
        addresses = {"api": self.url, "mlflow": self.mlflow_url}
        hosts = {"api": self.host, "mlflow": LOOPBACK}
        ours = [
            Process(
                entry.name,
                self.command(entry),
                entry.order,
                self._readiness(entry),
                once=entry.ready == "exits",
                required=entry.required,
                timeout=entry.timeout,
                prepare=self._preparation(entry),
                address=addresses.get(entry.name),
                ports=((hosts[entry.name], self.ports[entry.name]),) if entry.name in hosts else (),
            )
            for entry in TABLE
        ]
        return [*self.services(), *ours]
