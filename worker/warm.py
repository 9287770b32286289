"""Fork server: has the training stack imported once, and forks trainers and supervisors from it.

    {"op": "ping"}                  → {"ok": true, "pid": …}
    {"op": "fork", "kind": …, …}    → {"pid": …, "start": …}, later {"exit": code}

One thread, no tensor arithmetic, no CUDA and no secret in this process: what is secret travels in
a descriptor that only the child reads. Beside it travels a lifeline (`worker.lifeline`): a child
with one is killed by the kernel when its client dies.
"""

import fcntl
import gc
import importlib
import json
import logging
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pydantic import SecretStr
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from app.s3 import connect
from app.settings import Settings, default_home
from trainer_core.launch import SECRETS_FD
from worker import lifeline
from worker.environment import clean_environment, import_time
from worker.forks import LONGEST, supervisors_path
from worker.proctree import identify
from worker.spare import Spare, bind_to_parent, fork_spare

_log = logging.getLogger(__name__)
_QUIET_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_OWN = ("POLAR_HOME", "POLAR_WARM_SOCKET")
_BACKLOG = 64
_CALM = 0.02  # seconds without a request before the next child is forked ahead

# What a child becomes: the module whose `main` is called.
ROLES = {"trainer": "trainer_core.__main__", "supervisor": "worker.supervisor"}


def main(arguments: Sequence[str]) -> int:
    """`python -m worker warm`: serve where the other processes look for it."""
    del arguments
    # Not from the settings: they hold secrets that this process must not have.
    given = os.environ.get("POLAR_WARM_SOCKET")
    return serve(Path(given) if given else default_home() / "run" / "warm.sock")


def serve(socket_path: Path) -> int:
    """Import the stack, then fork on request until SIGTERM."""
    _shed_environment()
    started_with = import_time(dict(os.environ))
    _preload_supervisors()
    # Before the stack is here: a fork copies the tables of all memory, which then are large.
    light = _start_light(supervisors_path(socket_path), started_with)
    _preload_trainers()
    ForkServer(socket_path, started_with).run()
    with suppress(ProcessLookupError):
        os.kill(light, signal.SIGTERM)
    return 0


def _start_light(path: Path, started_with: dict[str, str]) -> int:
    """Fork a server for supervisors alone, which ends with this process; returns its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        bind_to_parent(signal.SIGTERM)
        gc.freeze()
        server = ForkServer(path, started_with, ("supervisor",))
        server.run(alive=lambda: os.getppid() == parent)
        code = 0
    finally:
        os._exit(code)


def _shed_environment() -> None:
    """Start over without variables that a trainer must not see: /proc shows the first ones."""
    kept = clean_environment() | {n: os.environ[n] for n in _OWN if n in os.environ}
    if set(os.environ) - set(kept) - set(_QUIET_THREADS):
        os.execve(sys.executable, sys.orig_argv, kept)  # noqa: S606 - ourselves again
    for name in _QUIET_THREADS:
        os.environ[name] = "1"


def _preload_supervisors() -> None:
    importlib.import_module(ROLES["supervisor"])
    # What supervisors load late: the database's driver, and the store's model of S3.
    nothing = Settings.model_construct(s3_access_key="none", s3_secret_key=SecretStr("none"))
    create_engine("postgresql+psycopg://").dispose()
    connect(nothing, "http://127.0.0.1")
    importlib.import_module("tomllib")
    with Session(create_engine("sqlite://")) as session:  # it makes its methods at its first use
        session.execute(text("SELECT 1"))


def _preload_trainers() -> None:
    importlib.import_module(ROLES["trainer"])
    importlib.import_module("trainer_core.warm").preload()


@dataclass
class ForkServer:
    """The loop: one listening socket, one connection per child, no threads."""

    path: Path
    import_time: dict[str, str]
    kinds: tuple[str, ...] = tuple(ROLES)
    children: dict[int, socket.socket | None] = field(default_factory=dict)
    spare: Spare | None = None
    stopping: bool = False

    def run(self, alive: Callable[[], bool] = lambda: True) -> None:
        """Serve until SIGTERM, or until `alive` says no; children live on."""
        listener = self._listen()
        bell_in, bell_out = os.pipe()
        for end in (bell_in, bell_out):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(bell_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, "listener")
        self._selector.register(bell_in, selectors.EVENT_READ, "bell")
        while not self.stopping and alive():
            happened = self._selector.select(timeout=5.0 if self.spare else _CALM)
            if not happened:
                self._keep_a_spare()
            for key, _ in happened:
                if key.data == "listener":
                    self._accept(listener)
                elif key.data == "bell":
                    os.read(bell_in, 4096)
                else:
                    self._hear(key.data)
            self._reap()
        self.path.unlink(missing_ok=True)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.stopping = True

    def _listen(self) -> socket.socket:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self.path.with_name(f".w{os.getpid()}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(str(draft))
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
        draft.replace(self.path)  # an old server's socket is replaced at once
        return listener

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        client.settimeout(2.0)
        peer = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if peer[1] != os.geteuid():
            client.close()
            return
        try:
            message, descriptors, _, _ = socket.recv_fds(client, LONGEST, 4)
        except OSError:
            client.close()
            return
        try:
            self._answer(client, message, descriptors)
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("refused a request: %s", error)
            _say(client, {"error": str(error)})
            client.close()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _answer(self, client: socket.socket, message: bytes, descriptors: list[int]) -> None:
        request = json.loads(message)
        if request["op"] == "ping":
            _say(client, {"ok": True, "pid": os.getpid()})
            client.close()
            return
        if request["op"] != "fork" or request["kind"] not in self.kinds or not descriptors:
            raise ValueError("unknown request")
        if request["kind"] == "trainer" and import_time(request["environment"]) != self.import_time:
            raise ValueError("the trainer needs variables that count at import")
        pid = self._fork(message, request, descriptors)
        who = identify(pid)
        _say(client, {"pid": pid, "start": who.start if who else 0})
        self.children[pid] = client
        self._selector.register(client, selectors.EVENT_READ, pid)

    def _keep_a_spare(self) -> None:
        if self.spare is None:
            try:
                self.spare = fork_spare(_read_and_become)
            except OSError as error:  # no memory or no process to be had now
                _log.warning("no spare process: %s", error)
            else:
                self.children[self.spare.pid] = None

    def _fork(self, message: bytes, request: dict[str, Any], descriptors: list[int]) -> int:
        spare, self.spare = self.spare, None
        if spare is not None and spare.give(message, descriptors):
            return spare.pid
        pid = os.fork()
        if pid == 0:
            _become(request, descriptors)
        return pid

    def _hear(self, pid: int) -> None:
        """A client says nothing after its request: readable means that it hung up."""
        client = self.children[pid]
        if client is not None:
            self._selector.unregister(client)
            client.close()
            self.children[pid] = None

    def _reap(self) -> None:
        for pid in list(self.children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            client = self.children.pop(pid)
            if self.spare is not None and self.spare.pid == pid:
                self.spare = None
            if client is not None:
                self._selector.unregister(client)
                _say(client, {"exit": os.waitstatus_to_exitcode(status)})
                client.close()


def _say(client: socket.socket, answer: dict[str, Any]) -> None:
    with suppress(OSError):  # it hung up meanwhile
        client.sendall(json.dumps(answer).encode() + b"\n")


def _read_and_become(message: bytes, descriptors: list[int]) -> NoReturn:
    _become(json.loads(message), descriptors)


def _become(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """In the child: leave the server behind, do the work, end without the server's clean-up."""
    code: int | None = 70
    try:
        _detach(request["log"], descriptors)
        _dress(request)
        os.chdir(request["cwd"])
        code = int(sys.modules[ROLES[request["kind"]]].main(request["argv"]))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        logging.getLogger(__name__).exception("the forked process failed")
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code or 0)


_PRIVATE, _LIFELINE = 3, 4  # the descriptors that a child keeps


def _detach(log: str, descriptors: list[int]) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    empty = os.open(os.devnull, os.O_RDONLY)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (empty, output, *descriptors)]
    for target, source in enumerate((high[0], high[1], high[1], *high[2:])):
        os.dup2(source, target, inheritable=target < _PRIVATE)
    os.closerange(_PRIVATE + len(descriptors), 65_536)
    if len(descriptors) > 1:
        lifeline.bind(_LIFELINE, os.getpid())
    logging.root.handlers.clear()  # the server's own way of writing
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115


def _dress(request: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["kind"] == "supervisor":
        with os.fdopen(_PRIVATE, "rb") as file:
            os.environ.update(json.loads(file.read()))
    else:
        os.environ[SECRETS_FD] = str(_PRIVATE)
