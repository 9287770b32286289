"""Asking the warm fork server for a process: the client's side, and the words of both."""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from app.settings import Settings
from worker.proctree import Identity

LONGEST = 65_536
Kind = Literal["trainer", "supervisor"]


class NoWarmServer(Exception):
    """The fork server does not answer, or refuses: start cold."""


@dataclass(frozen=True)
class ForkRequest:
    """What to fork; nothing in it is secret.

    Beside it travels a descriptor with a JSON object for the child's eyes alone: a trainer's
    secrets, or variables of a supervisor.
    """

    kind: Kind
    argv: Sequence[str]
    cwd: str
    log: str
    environment: Mapping[str, str] = field(default_factory=dict)


def socket_path(settings: Settings) -> Path:
    """Where the fork server of this host listens."""
    return settings.warm_socket or settings.home / "run" / "warm.sock"


def supervisors_path(path: Path) -> Path:
    """Where the part of the fork server at `path` listens that forks supervisors quickly."""
    return path.with_name("lite.sock")


def ping(path: Path, timeout: float = 2.0) -> bool:
    """Say whether a fork server answers there."""
    try:
        with connect(path, timeout) as client:
            client.sendall(b'{"op": "ping"}\n')
            return read_line(client) is not None
    except (OSError, NoWarmServer):
        return False


class Fork:
    """A forked process, whose exit code the server will tell."""

    def __init__(self, connection: socket.socket, who: Identity) -> None:
        self.identity = who
        self._connection = connection
        self._connection.setblocking(False)
        self.exit_code: int | None = None
        self.lost = False

    def poll(self) -> int | None:
        """Return the exit code once the process has ended (negative: a signal).

        `lost` says that the server itself is gone, so that no code will ever come.
        """
        if self.exit_code is None and not self.lost:
            try:
                line = read_line(self._connection)
            except BlockingIOError:
                return None
            except OSError:
                line = None
            self.lost = line is None
            self.exit_code = None if line is None else line.get("exit")
        return self.exit_code

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def fork(
    path: Path, request: ForkRequest, descriptors: Sequence[int], timeout: float = 5.0
) -> Fork:
    """Have the server fork a process with the private descriptor and, optionally, a lifeline.

    Raises NoWarmServer.
    """
    message = json.dumps({"op": "fork", **asdict(request)}).encode() + b"\n"
    if len(message) > LONGEST:
        raise NoWarmServer("the request is too long")
    try:
        client = connect(path, timeout)
        try:
            socket.send_fds(client, [message], list(descriptors))
            answer = read_line(client)
        except OSError:
            client.close()
            raise
    except OSError as error:
        raise NoWarmServer(f"{path}: {error}") from error
    if answer is None or "pid" not in answer:
        client.close()
        raise NoWarmServer(str((answer or {}).get("error", "the server hung up")))
    return Fork(client, Identity(answer["pid"], answer["start"]))


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to the server; raises NoWarmServer unless its socket is our own user's."""
    try:
        if path.stat().st_uid != os.geteuid():
            raise NoWarmServer(f"{path} belongs to someone else")
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(timeout)
        client.connect(str(path))
    except OSError as error:
        raise NoWarmServer(f"{path}: {error}") from error
    return client


def read_line(connection: socket.socket) -> dict[str, Any] | None:
    """Read one JSON line; None when the other side hung up.

    Lines are short and come whole, but the next one may be right behind: a process that ended at
    once. That one stays for the next call.
    """
    data = b""
    while not data.endswith(b"\n"):
        there = connection.recv(4096, socket.MSG_PEEK)
        if not there:
            return None
        data += connection.recv(there.find(b"\n") + 1 or len(there))
    answer: dict[str, Any] = json.loads(data)
    return answer


def memory_file(content: Mapping[str, str]) -> int:
    """Return a descriptor of an unnamed file in memory with this JSON object, at its start."""
    descriptor = os.memfd_create("polar", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(json.dumps(dict(content)).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
