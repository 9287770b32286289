"""Where the parts of an installation are: its own services, or others that the settings name."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from polar.backup.database import exists
from polar.backup.errors import BackupFailed
from polar.backup.objects import StoreAddress
from polar.stack import spawn
from polar.stack.home import Home
from polar.stack.ports import quiet_ports
from polar.stack.processes import PORTS, Stack
from polar.stack.services import Postgres, SeaweedFS, ServiceFailed, wait_ready
from polar.stack.state import running_state

EXTERNAL = "POLAR_DATABASE_URL"
START_TIMEOUT = 120.0
START_TRIES, PAUSE = 4, 1.0
_NOBODY_LISTENS = "redis://127.0.0.1:1/0"


@dataclass(frozen=True)
class Place:
    """An installation whose services answer.

    `tracking_url` is MLflow's database, None where there is none; `home` its data folder, None
    where the services are not ours.
    """

    database_url: str = field(repr=False)
    tracking_url: str | None = field(repr=False)
    store: StoreAddress
    home: Home | None
    key_file: Path | None
    environment: Mapping[str, str] = field(repr=False)

    @classmethod
    def of_stack(cls, stack: Stack) -> Self:
        """Return the place of an embedded stack."""
        access, secret = stack.s3.keys
        tracking = stack.postgres.url("mlflow")
        return cls(
            database_url=stack.postgres.url("polar"),
            tracking_url=tracking if exists(stack.postgres.url("postgres"), "mlflow") else None,
            store=StoreAddress(stack.s3.endpoint, access, secret, stack.s3.bucket, stack.s3.region),
            home=stack.home,
            key_file=None,
            environment={"POLAR_HOME": str(stack.home.path)},
        )

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Self:
        """Return the place that the service's own variables name."""

        def s3(name: str, default: str = "") -> str:
            return environ.get(f"POLAR_S3_{name}") or environ.get(f"S3_{name}") or default

        url = environ[EXTERNAL]
        tracking = environ.get("MLFLOW_BACKEND_STORE_URI")
        if tracking is None and exists(url, "mlflow"):
            tracking = _other_database(url, "mlflow")
        key = environ.get("POLAR_SECRET_KEY_FILE")
        return cls(
            database_url=url,
            tracking_url=tracking,
            store=StoreAddress(
                s3("ENDPOINT") or None,
                s3("ACCESS_KEY"),
                s3("SECRET_KEY"),
                s3("BUCKET", "polar"),
                s3("REGION", "us-east-1"),
            ),
            home=None,
            key_file=Path(key) if key else None,
            environment={n: v for n, v in environ.items() if n.startswith("POLAR_")},
        )

    def ask(self, arguments: Sequence[str], timeout: float = 3600.0) -> str:
        """Run a Python program of the service on this place's database; returns what it prints.

        Raises BackupFailed.
        """
        settings = {n: v for n, v in os.environ.items() if n.startswith("POLAR_")}
        own = {EXTERNAL: self.database_url, "POLAR_BROKER_URL": _NOBODY_LISTENS}
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**spawn.basic_environment(), **settings, **self.environment, **own},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            said = done.stderr.strip() or done.stdout.strip()
            raise BackupFailed(f"{' '.join(arguments[:3])} failed: {said}")
        return done.stdout


def _other_database(url: str, name: str) -> str:
    base, _, query = url.partition("?")
    return f"{base.rpartition('/')[0]}/{name}" + (f"?{query}" if query else "")


def refuse_nested(target: Path, home: Path) -> None:
    """Raise BackupFailed for a back-up inside the data folder, or the other way round.

    Looked at as files, not as names: links and mounts lead to the same place.
    """
    target = target.absolute()
    if contains(home, target):
        raise BackupFailed(
            f"{target} is in the data folder {home}: what is lost with that would take the back-up "
            "along; name a place outside of it, best on another disk"
        )
    if contains(target, home):
        raise BackupFailed(f"the data folder {home} is in {target}: name a place outside of it")


def contains(outer: Path, inner: Path) -> bool:
    """Say whether `inner` is, or would be, at or below `outer`."""
    if not outer.exists():
        return False
    resolved = inner.resolve()
    return any(each.exists() and each.samefile(outer) for each in (resolved, *resolved.parents))


@contextmanager
def installation(home: Home) -> Iterator[Place]:
    """Find what is to be backed up: what POLAR_DATABASE_URL names, or else the stack of `home`.

    A stack that does not run has its database and store started for as long as the block lasts.
    Raises BackupFailed when there is neither, or both.
    """
    running = running_state(home)
    if EXTERNAL in os.environ:
        if running is not None:
            raise BackupFailed(
                f"{EXTERNAL} names a service, and a stack runs on {home.path} too: unset the "
                "variable, or let POLAR_HOME name another folder"
            )
        yield Place.of_environment(os.environ)
    elif running is not None:
        ports = home.settings().get("ports")
        if running.role == "host":
            raise BackupFailed(f"on {home.path} runs a host: take the back-up where the service is")
        if running.phase != "ready" or not isinstance(ports, dict):
            raise BackupFailed(
                f"the stack is {running.phase}; wait until `polar status` says ready"
            )
        yield Place.of_stack(Stack(home, ports, running.identity))
    elif (home.path / "postgres" / "PG_VERSION").exists():
        home.lay()
        with home.claimed("polar backup"), services(home) as stack:
            yield Place.of_stack(stack)
    else:
        raise BackupFailed(
            f"there is no installation in {home.path}: set POLAR_HOME to its data folder, or "
            f"{EXTERNAL} and the S3 variables to its services"
        )


class ServiceEnded(ServiceFailed):
    """A service ended at its start; another try, on other ports, may do better."""


@contextmanager
def services(
    home: Home, before_start: Callable[[Postgres], None] = lambda _: None
) -> Iterator[Stack]:
    """Run database and store of a data folder on free ports until the block ends.

    `before_start` is called with the server that is about to start. Raises BackupFailed.
    """
    home.lay()
    try:
        with ExitStack() as running:
            for left in reversed(range(START_TRIES)):
                ports = dict(zip(PORTS, quiet_ports(len(PORTS)), strict=True))
                stack = Stack(home, ports, f"backup-{secrets.token_hex(4)}")
                try:
                    with ExitStack() as starting:
                        _start(stack, before_start, starting)
                        running.push(starting.pop_all())
                    break
                except ServiceEnded:  # its port was stolen, or a killed one's processes still end
                    if not left:
                        raise
                    time.sleep(PAUSE)
            yield stack
    except ServiceFailed as failure:
        raise BackupFailed(str(failure)) from failure


def _start(stack: Stack, before_start: Callable[[Postgres], None], starting: ExitStack) -> None:
    """Start database and store; `starting` stops them. Raises ServiceFailed."""
    stack.postgres.prepare()
    before_start(stack.postgres)
    stack.s3.prepare()
    for name, service in (("postgres", stack.postgres), ("s3", stack.s3)):
        command, log = service.command(), stack.home.log(f"backup-{name}")
        process = spawn.start(command, log)
        starting.callback(spawn.stop, process, command, 60.0)
        wait_ready(partial(_answers, service, name, log, process), name, START_TIMEOUT)


def _answers(
    service: Postgres | SeaweedFS, name: str, log: Path, process: subprocess.Popen[bytes]
) -> bool:
    if (code := process.poll()) is not None:
        raise ServiceEnded(f"{name} ended with code {code} at its start: see {log}")
    return service.is_ready()
