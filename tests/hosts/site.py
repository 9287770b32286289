"""A service and a second host, which have three links between them and nothing else.

Where this machine allows it the second host has a network of its own (a namespace without any
interface but loopback); else it reaches the service over the same links by other ports.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from polar.stack import control, proctree
from polar.stack.home import Home
from polar.stack.state import running_state
from tests.drills.proxy import Proxy, Toxic
from tests.e2e.harness import World
from tests.services import ROOT, wait_until

Name = Literal["postgres", "valkey", "s3_s3"]
NAMES: tuple[Name, ...] = ("postgres", "valkey", "s3_s3")
INSIDE = Path(__file__).with_name("inside.py")


def own_network() -> list[str] | None:
    """Return what to put before a command for a network of its own; None where it is refused."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    wrapper = ["unshare", *user, "--net"]
    if shutil.which("unshare") is None:
        return None
    probe = [*wrapper, sys.executable, str(INSIDE), "{}", "true"]
    done = subprocess.run(probe, capture_output=True, timeout=30, check=False)
    return wrapper if done.returncode == 0 else None


class Door:
    """A Unix socket that leads to a port of this machine: the way out of a network of its own."""

    def __init__(self, path: Path, port: int) -> None:
        self.path = path
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Door":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = asyncio.start_unix_server(self._serve, str(self.path))
        server = self._loop.run_until_complete(listening)
        self._ready.set()
        self._loop.run_forever()
        server.close()
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, server), _pump(answers, writer))
        for each in (server, writer):
            each.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
        return
    writer.transport.abort()


@dataclass
class Links:
    """The three links from a second host to the service, each with faults on demand."""

    proxies: dict[Name, Proxy]
    doors: dict[int, Path]  # port as the service knows it → socket
    network: list[str] | None

    @contextmanager
    def broken(self, how: Toxic) -> Iterator[None]:
        """Have all of them slow, cut or half open for as long as the block lasts."""
        with ExitStack() as held:
            for proxy in self.proxies.values():
                held.enter_context(proxy.toxic(how))
            yield

    def command(self, *command: str) -> list[str]:
        """Return a command that has these links and no others."""
        if self.network is None:
            return list(command)
        doors = json.dumps({str(port): str(path) for port, path in self.doors.items()})
        return [*self.network, sys.executable, str(INSIDE), doors, *command]

    def translated(self, text: str) -> str:
        """Return addresses as the second host needs them."""
        if self.network is not None:
            return text
        for port, proxy in zip(self.doors, self.proxies.values(), strict=True):
            text = text.replace(f":{port}", f":{proxy.port}")
        return text


@contextmanager
def linked(world: World, folder: Path, *, latency: float = 0.15) -> Iterator[Links]:
    """Lay links to a running service."""
    ports = world.home.settings()["ports"]
    assert isinstance(ports, dict)
    with ExitStack() as held:
        proxies: dict[Name, Proxy] = {}
        doors: dict[int, Path] = {}
        for name in NAMES:
            port = ports[name]
            proxy = Proxy(lambda port=port: ("127.0.0.1", port), latency=latency)  # type: ignore[misc]
            proxies[name] = held.enter_context(proxy)
            doors[port] = folder / name[:2]
            held.enter_context(Door(doors[port], proxy.port))
        yield Links(proxies, doors, own_network())


@dataclass
class SecondHost:
    """A host that has joined."""

    home: Home
    links: Links
    id: str
    process: subprocess.Popen[bytes] = field(repr=False)

    def trainers(self) -> list[psutil.Process]:
        """Processes of this host that train, by the folder that they work in."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if Path(process.cwd()).is_relative_to(self.home.path / "attempts"):
                    found.append(process)
        return found


def printed_addresses(world: World) -> dict[str, str]:
    """Return what `polar worker addresses` prints on the service's machine."""
    done = subprocess.run(
        [sys.executable, "-m", "polar", "worker", "addresses"],
        cwd=ROOT,
        env={**os.environ, "POLAR_HOME": str(world.home.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = re.findall(r"^export (\w+)=(.*)$", done.stdout, re.MULTILINE)
    return {name: value.strip("'") for name, value in lines}


def environment(world: World, links: Links, home: Path, **settings: str) -> dict[str, str]:
    """Return the variables of a second host: the printed addresses, and the tests' settings."""
    addresses = {n: links.translated(v) for n, v in printed_addresses(world).items()}
    basic = {n: os.environ[n] for n in ("PATH", "HOME", "LANG", "TMPDIR") if n in os.environ}
    own = {"POLAR_HOME": str(home), "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT)}
    folders = {
        "POLAR_MODEL_FOLDERS": json.dumps([str(world.model.parent)]),
        "POLAR_DATA_FOLDERS": json.dumps([str(world.data)]),
    }
    return {**basic, **addresses, **folders, **own, **settings}


@contextmanager
def joined(
    world: World, links: Links, home: Home, settings: Mapping[str, str], seconds: int = 0
) -> Iterator[SecondHost]:
    """Have a second host join, and end it with everything that it started.

    Its date is wrong by so many seconds.
    """
    home.lay()
    variables = environment(world, links, home.path, **settings)
    command = [sys.executable, "-m", "polar", "worker", "join"]
    if seconds:
        options = json.dumps({"home": str(home.path), "seconds": seconds})
        guard = [sys.executable, "-m", "polar.stack.guard", "--attached"]
        command = [*guard, sys.executable, "-m", "tests.hosts.late_host", options]
    with home.log("join").open("wb") as log:
        process = subprocess.Popen(
            links.command(*command),
            cwd=ROOT,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: _is_up(home, process), timeout=240, every=0.2)
        name = (home.run / "worker-id").read_text(encoding="utf-8").strip()
        yield SecondHost(home, links, name, process)
    finally:
        _end(home, process)


def _is_up(home: Home, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, home.log("join").read_text() + home.log("stack").read_text()
    state = running_state(home)
    if state is None or state.phase != "ready":
        return False
    return state.processes["warm"].condition == "ready"  # cold starts take long


def _end(home: Home, process: subprocess.Popen[bytes]) -> None:
    below = proctree.descendants(process.pid)
    with suppress(control.StackFailed):
        control.stop(home)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    proctree.send([each for each in below if proctree.is_alive(each.identity)], signal.SIGKILL)
    process.wait(10)
