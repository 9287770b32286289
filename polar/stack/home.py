"""The data folder of one installation: where everything lies, and the ports it has chosen."""

import hashlib
import json
import os
import random
import re
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from polar.stack.holding import Held, held, holder
from polar.stack.ports import LOOPBACK, first_free, is_free
from polar.stack.private import private_folder, write_private

API_PORT = 8010
_SOCKET_PATH_LIMIT = 100  # bytes; the kernel's is 107


class Unusable(Exception):
    """This data folder cannot be worked with now; the message says why.

    Unusable
    ├── AlreadyRunning   another process of ours holds it
    └── HalfRestored     a restore into it broke off
    """


class AlreadyRunning(Unusable):
    """Another process holds this data folder."""


class HalfRestored(Unusable):
    """A restore into this data folder broke off."""


def in_use(path: Path, who: str) -> str:
    """Say that somebody works on a data folder."""
    return f"{path} is in use by {who}: wait for its end or stop it"


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

    @property
    def models(self) -> Path:
        """Models that jobs may read where they lie."""
        return self.path / "models"

    @property
    def former_models_file(self) -> Path:
        """Where `models` lay before this folder was restored from a back-up: specs name it."""
        return self.path / "former-models.json"

    def model_places(self) -> list[str]:
        """Return all folders that `models` has lain in, the present one first."""
        places = [str(self.models)]
        if self.former_models_file.exists():
            places += json.loads(self.former_models_file.read_text(encoding="utf-8"))
        return list(dict.fromkeys(places))

    def settings(self) -> dict[str, object]:
        """Return what polar.toml says; nothing when there is none."""
        if not self.settings_file.exists():
            return {}
        return tomllib.loads(self.settings_file.read_text(encoding="utf-8"))

    @property
    def lock(self) -> Path:
        """What a process holds that works on this folder alone."""
        return self.run / "stack.lock"

    def holder(self) -> str | None:
        """Say who works on this folder: a stack, a back-up or a restore; None when nobody does."""
        return holder(self.lock)

    @contextmanager
    def claimed(self, what: str, *, restoring: bool = False) -> Iterator[None]:
        """Hold this folder alone, as `what`; only who is `restoring` gets a half restored one.

        Raises AlreadyRunning, which names the holder, and HalfRestored.
        """
        with ExitStack() as holding:
            try:
                holding.enter_context(held(self.lock, what))
            except Held as other:
                raise AlreadyRunning(in_use(self.path, str(other))) from None
            if not restoring:
                self.refuse_half_restored()
            yield

    def refuse_half_restored(self) -> None:
        """Raise HalfRestored when a restore into this folder broke off."""
        if self.restoring.exists():
            raise HalfRestored(
                f"a restore into {self.path} did not end: run polar restore again, or delete that "
                "folder; what is in it is not whole"
            )


class PortTaken(OSError):
    """The port that was asked for is another program's."""


def choose_ports(
    home: Home, names: tuple[str, ...], host: str, api_port: int | None = None
) -> dict[str, int]:
    """Return a port for each name: those of the last start where they are still free.

    The API takes `api_port`, or else 8010 or the next free port of `host`, and everything else one
    on the loopback address, below the range that the kernel gives to outgoing connections. Raises
    PortTaken when `api_port` is not free.
    """
    if api_port is not None and not is_free(api_port, host):
        raise PortTaken(
            f"port {api_port} on {host} is taken by another program, or not ours to take: name "
            "another --port, or none, and a free one is chosen"
        )
    stored = home.settings().get("ports")
    earlier = stored if isinstance(stored, dict) else {}
    chosen: dict[str, int] = {}
    for name in names:
        address = host if name == "api" else LOOPBACK
        wanted = api_port if name == "api" and api_port is not None else earlier.get(name)
        port = wanted if isinstance(wanted, int) else 0
        if not port or port in chosen.values() or not is_free(port, address):
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
