"""The embedded stack with other addresses and other clocks, as a program and as a context.

    python -m tests.drills.stack OPTIONS     (JSON: home, proxies, clocks)

The processes are those of `polar up`, kept by the same supervisor under the same guard. What
differs: addresses lead over proxies (their ports), and processes named in `clocks` live with a
date that is wrong by so many seconds.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from polar.stack import control, proctree, spawn
from polar.stack.home import Home, choose_ports
from polar.stack.ports import free_ports
from polar.stack.private import write_private
from polar.stack.processes import PORTS, Entry, Stack
from polar.stack.services import Postgres, Valkey
from polar.stack.spawn import Command
from polar.stack.state import StackState
from polar.stack.supervisor import Supervisor, supervise
from tests.drills.proxy import Proxy
from tests.e2e.harness import World, _is_ready
from tests.plain import Plain
from tests.services import ROOT, wait_until

# 60 s of the real world are 6 s here: leases, heartbeats, time-outs, back-offs, all by the same.
SCALE = 10.0
SETTINGS = {
    "POLAR_CPU_SLOTS": "4",
    "POLAR_LEASE": str(60 / SCALE),
    "POLAR_LEASE_RENEW": str(15 / SCALE),
    "POLAR_GRACE": str(30 / SCALE),
    "POLAR_POLL": str(1 / SCALE),
    "POLAR_START_TIMEOUT": str(600 / SCALE),
    "POLAR_STALL_TIMEOUT": str(1800 / SCALE),
    "POLAR_RETRY_BASE": str(5 / SCALE),
    "POLAR_WORKER_TIMEOUT": str(60 / SCALE),
    "POLAR_HINT_AFTER": str(20 / SCALE),
    "POLAR_STORE_PATIENCE": str(600 / SCALE),
    "POLAR_HEARTBEAT": str(15 / SCALE),
}
# Which port of the stack each proxied component answers on.
PROXIED = {
    "postgres": "postgres",
    "valkey": "valkey",
    "s3": "s3_s3",
    "mlflow": "mlflow",
    "api": "api",
}
_CLOCK = Path(__file__).with_name("clock.py")


class DrillStack(Stack):
    """The stack whose processes may have wrong dates; `clocks` is set once it was made."""

    clocks: Mapping[str, float] = {}

    def command(self, entry: Entry) -> Command:
        """Return the row's command, begun with the clock's where it has one of its own."""
        command = super().command(entry)
        seconds = self.clocks.get(entry.name)
        if seconds is None:
            return command
        python, dash_m, *rest = command.arguments
        assert dash_m == "-m"
        return Command([python, str(_CLOCK), str(seconds), *rest], command.environment)


@dataclass
class Options:
    """What a drill's stack needs: proxies in front of services, wrong clocks, small file systems.

    `small` maps folders of the data folder to a size in bytes.
    """

    proxied: bool = True
    clocks: dict[str, float] = field(default_factory=dict)
    small: dict[str, int] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


@dataclass
class DrillWorld(World):
    """A running stack with the proxies in front of its services."""

    proxies: dict[str, Proxy] = field(default_factory=dict)
    root: Path = Path("/")  # where the stack's own view of the file system begins

    def sql(self, statement: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, however long the database is away (a minute at most)."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return super().sql(statement, *values)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def valkey(self) -> Valkey:
        """The broker, reached without a proxy."""
        ports = self.home.settings()["ports"]
        assert isinstance(ports, dict)
        return Valkey(self.home.path / "valkey", self.home.secrets / "valkey", ports["valkey"])

    def inside(self, folder: str) -> Path:
        """A folder of the data folder as the stack sees it, small file systems included."""
        return self.root / (self.home.path / folder).relative_to("/")


def _overrides(home: Home, proxies: Mapping[str, int]) -> dict[str, str]:
    """Return the variables that lead over the proxies; secret, so made where they are used."""
    if not proxies:
        return {}
    database = Postgres(home.path / "postgres", home.secrets / "postgres", proxies["postgres"])
    broker = Valkey(home.path / "valkey", home.secrets / "valkey", proxies["valkey"])
    return {
        "POLAR_DATABASE_URL": database.url("polar"),
        "POLAR_BROKER_URL": broker.url,
        "POLAR_S3_ENDPOINT": f"http://127.0.0.1:{proxies['s3']}",
        "POLAR_MLFLOW_URL": f"http://127.0.0.1:{proxies['mlflow']}",
        "MLFLOW_BACKEND_STORE_URI": database.url("mlflow"),
        "MLFLOW_S3_ENDPOINT_URL": f"http://127.0.0.1:{proxies['s3']}",
    }


def _small_file_systems(home: Home, small: Mapping[str, int]) -> list[str]:
    """Return what to put before the stack's command so that these folders are small."""
    if not small:
        return []
    mounts = []
    for folder, size in small.items():
        (home.path / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        mounts.append(f'mount -t tmpfs -o size={size},mode=700 polar "$0/{folder}"')
    # Postgres lays its folder by renaming one, which a mount would not let it.
    seed = home.path / "seed"
    Postgres(seed, home.secrets / "postgres", 0).prepare()
    mounts.append('cp -a "$0/seed/." "$0/postgres/"')
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = " && ".join([*mounts, 'exec "$@"'])
    return ["unshare", *user, "--mount", "sh", "-c", script, str(home.path)]


def can_mount() -> bool:
    """Say whether this user may have small file systems in a mount namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--mount", "mount", "-t", "tmpfs", "polar", "/mnt"]
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0


def _launch(home: Home, proxies: Mapping[str, int], options: Options) -> subprocess.Popen[bytes]:
    home.lay()
    arguments = json.dumps(
        {"home": str(home.path), "proxies": dict(proxies), "clocks": options.clocks}
    )
    supervisor = [sys.executable, "-m", "tests.drills.stack", arguments]
    guard = [sys.executable, "-m", "polar.stack.guard", "--attached"]
    with home.log("stack").open("ab") as log:
        return subprocess.Popen(
            [*_small_file_systems(home, options.small), *guard, *supervisor],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home.run,
            start_new_session=True,
            env={**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT)},
        )


@contextmanager
def drill_stack(
    folder: Path, model: Path, data: Path, options: Options | None = None
) -> Iterator[DrillWorld]:
    """Start a stack on `folder`, and end it with everything that it started."""
    options = options or Options()
    home = Home(folder)

    def upstream(port: str) -> tuple[str, int]:
        ports = home.settings()["ports"]
        assert isinstance(ports, dict)
        return "127.0.0.1", ports[port]

    with ExitStack() as held:
        names = PROXIED if options.proxied else {}
        proxies = {
            name: held.enter_context(Proxy(lambda port=port: upstream(port)))  # type: ignore[misc]
            for name, port in names.items()
        }
        home.lay()
        # Another stack that starts now would choose the same one of the usual ports.
        write_private(home.settings_file, f"[ports]\napi = {free_ports(1)[0]}\n")
        ports = {name: proxy.port for name, proxy in proxies.items()}
        guard = _with_settings(home, model, data, ports, options)
        try:
            *_, state = control.progress(home, guard)
            wait_until(lambda: _is_ready(home, "warm"), timeout=240, every=0.2)
            yield held.enter_context(_world(home, state, (model, data), proxies, guard))
        finally:
            _stop(home, guard)


def _with_settings(
    home: Home, model: Path, data: Path, proxies: Mapping[str, int], options: Options
) -> subprocess.Popen[bytes]:
    with pytest.MonkeyPatch.context() as patch:  # the stack's settings, not the other tests'
        for name, value in {**SETTINGS, **options.settings}.items():
            patch.setenv(name, value)
        patch.setenv("POLAR_MODEL_FOLDERS", json.dumps([str(model.parent)]))
        patch.setenv("POLAR_DATA_FOLDERS", json.dumps([str(data)]))
        return _launch(home, proxies, options)


@contextmanager
def _world(
    home: Home,
    state: StackState,
    folders: tuple[Path, Path],
    proxies: dict[str, Proxy],
    guard: subprocess.Popen[bytes],
) -> Iterator[DrillWorld]:
    key = (home.secrets / "api-key").read_text().strip()
    url = f"http://127.0.0.1:{proxies['api'].port}" if proxies else state.url
    root = Path(f"/proc/{guard.pid}/root")
    with Plain(url, key) as client:
        yield DrillWorld(home, state, client, *folders, proxies=proxies, root=root)


def _stop(home: Home, guard: subprocess.Popen[bytes]) -> None:
    with suppress(control.StackFailed):
        control.stop(home)
    if guard.poll() is None:
        guard.send_signal(signal.SIGKILL)
    guard.wait(10)


def main(arguments: Sequence[str]) -> int:
    """Run the stack that the options describe, as `polar.stack.supervisor` does."""
    spawn.die_with_parent(signal.SIGTERM)
    spawn.adopt_orphans()
    options = json.loads(arguments[0])
    home = Home(Path(options["home"]))
    with home.claimed("drills"):
        identity = proctree.identity(os.getpid())
        ports = choose_ports(home, PORTS, "127.0.0.1")
        overrides = _overrides(home, options["proxies"])
        stack = DrillStack(home, ports, identity, overrides=overrides)
        object.__setattr__(stack, "clocks", options["clocks"])
        guard = proctree.identity(os.getppid())
        state = StackState(identity=identity, guard=guard, url=stack.url, auth=stack.auth)
        return asyncio.run(supervise(Supervisor(home, stack.processes(), state)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
