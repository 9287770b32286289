"""Who holds a data folder: one process at a time, and whoever else wants it learns which one.

The lock itself is the kernel's, so that it ends with its holder, and holds across containers that
share the folder. What the file says is only believed as far as it can be checked: a number of a
process means nothing in another container, and may be another process's by now.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from polar.stack import proctree

_PATIENCE = 0.5  # seconds; who only looks holds the lock for a moment


class Held(Exception):
    """Someone else holds the lock; the message says who."""


@dataclass(frozen=True)
class Holder:
    """What a holder writes into the file: who it is, and where its pid means something."""

    what: str
    identity: str
    space: str
    hostname: str

    @classmethod
    def this_process(cls, what: str) -> "Holder":
        """Return this process as the holder."""
        return cls(what, proctree.identity(os.getpid()), _space(), socket.gethostname())

    @property
    def pid(self) -> str:
        """Its number, in its own space."""
        return self.identity.partition(":")[0]


def _space() -> str:
    """Return what numbers of processes are only comparable within: a boot's pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold the lock at `path` as `what` until the block ends; raises Held."""
    descriptor = _locked(path)
    try:
        said = json.dumps(asdict(Holder.this_process(what))).encode()
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, said, 0)
        yield
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int:
    deadline = time.monotonic() + _PATIENCE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if _is_ours(descriptor, path):
            return descriptor
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise Held(describe(path))
        time.sleep(0.02)


def _is_ours(descriptor: int, path: Path) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _is_at(descriptor, path)  # its holder may have removed it a moment ago
    return False


def _is_at(descriptor: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def holder(path: Path) -> str | None:
    """Say who holds the lock at `path`; None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # there is none, or not for us; who wants the lock itself is told
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return describe(path)
    finally:
        os.close(descriptor)
    return None


def describe(path: Path) -> str:
    """Say who holds a lock that is held: what can be seen goes before what its file says."""
    said = _said(path)
    seen = _lockers(path)
    if said is not None and said.space == _space():
        if int(said.pid) in seen or proctree.is_alive(said.identity):
            return f"{said.what}, pid {said.pid}"
    elif said is not None and not seen:
        return (
            f"{said.what} in another container or on another machine (host name {said.hostname}, "
            f"pid {said.pid} there)"
        )
    if seen:
        return f"pid {', '.join(map(str, seen))}"
    return "a process that cannot be seen from here: of another user, container or machine"


def _said(path: Path) -> Holder | None:
    with suppress(OSError, ValueError, TypeError):
        found = Holder(**json.loads(path.read_text(encoding="utf-8")))
        return found if found.pid.isdigit() else None
    return None


def _lockers(path: Path) -> list[int]:
    """Return the processes that hold a lock on this very file, as far as we may look."""
    try:
        file = path.stat()
    except OSError:
        return []
    found = []
    for each in proctree.everything():
        with suppress(OSError):  # another user's, or it ended meanwhile
            if any(_locks(entry, file) for entry in Path(f"/proc/{each.pid}/fd").iterdir()):
                found.append(each.pid)
    return found


def _locks(entry: Path, file: os.stat_result) -> bool:
    with suppress(OSError):
        if os.path.samestat(entry.stat(), file):
            facts = entry.parent.with_name("fdinfo") / entry.name
            return "\nlock:" in facts.read_text(encoding="ascii", errors="replace")
    return False
