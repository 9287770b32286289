"""The data folder of one installation: where everything lies, and the ports it has chosen."""

import fcntl
import hashlib
import os
import random
import re
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from polar.stack.ports import LOOPBACK, first_free, is_free
from polar.stack.private import private_folder, write_private

API_PORT = 8010
_SOCKET_PATH_LIMIT = 100  # bytes; the kernel's is 107


class AlreadyRunning(Exception):
    """Another stack holds this data folder."""


def default_home() -> Path:
    """The data folder: `POLAR_HOME`, or `~/.polar`."""
    return Path(os.environ.get("POLAR_HOME") or Path.home() / ".polar").absolute()


@dataclass(frozen=True)
class Home:
    """The folder's layout; see docs/architecture.md."""

    path: Path

    @property
    def secrets(self) -> Path:
        """Folder of the generated secrets, one a file."""
        return self.path / "secrets"

    @property
    def run(self) -> Path:
        """Folder of what describes the running stack."""
        return self.path / "run"

    @property
    def restoring(self) -> Path:
        """Where a restore lays everything before it moves it up; there only while one is made."""
        return self.path / ".restoring"

    @property
    def settings_file(self) -> Path:
        """The user's settings; the stack keeps its ports in the table `ports`."""
        return self.path / "polar.toml"

    def log(self, process: str) -> Path:
        """Where a process's output goes."""
        return self.path / "logs" / f"{process}.log"

    def lay(self) -> None:
        """Make the folders that every start needs."""
        private_folder(self.path)
        for folder in (self.secrets, self.run, self.path / "logs"):
            private_folder(folder)

    def warm_socket(self) -> Path:
        """Where the warm fork server listens: a path short enough for a socket."""
        usual = self.run / "warm.sock"
        if len(os.fsencode(usual)) <= _SOCKET_PATH_LIMIT:
            return usual
        name = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        folder = private_folder(Path(tempfile.gettempdir()) / f"polar-{os.geteuid()}-{name}")
        if folder.stat().st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to someone else; set TMPDIR")
        return folder / "warm.sock"

    def settings(self) -> dict[str, object]:
        """Return what polar.toml says; nothing when there is none."""
        if not self.settings_file.exists():
            return {}
        return tomllib.loads(self.settings_file.read_text(encoding="utf-8"))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold this folder alone; raises AlreadyRunning when another stack holds it."""
        with (self.run / "stack.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyRunning(f"a stack is already running on {self.path}") from None
            yield


def choose_ports(home: Home, names: tuple[str, ...], host: str) -> dict[str, int]:
    """Return a port for each name: those of the last start where they are still free.

    The API takes 8010 or the next free port of `host`, and everything else one on the loopback
    address, below the range that the kernel gives to outgoing connections.
    """
    stored = home.settings().get("ports")
    earlier = stored if isinstance(stored, dict) else {}
    chosen: dict[str, int] = {}
    for name in names:
        address = host if name == "api" else LOOPBACK
        port = earlier.get(name)
        if not isinstance(port, int) or not is_free(port, address):
            first = API_PORT if name == "api" else random.randint(20_000, 30_000)  # noqa: S311
            port = first_free(first, address)
            while port in chosen.values():
                port = first_free(port + 1, address)
        chosen[name] = port
    _store_ports(home, chosen)
    return chosen


def _store_ports(home: Home, ports: dict[str, int]) -> None:
    file = home.settings_file
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    table = "[ports]\n" + "".join(f"{name} = {port}\n" for name, port in ports.items())
    section = re.compile(r"^\[ports\]\n(?:(?!\[).*\n?)*", re.MULTILINE)
    if section.search(text):
        text = section.sub(table, text, count=1)
    else:
        text = f"{text.rstrip()}\n\n{table}".lstrip()
    write_private(file, text)
