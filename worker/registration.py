"""Says in Postgres that this process lives, and which devices its host offers."""

import contextlib
import logging
import os
import re
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psutil
from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.db import transaction
from app.settings import Settings

Kind = Literal["host", "control", "prepare", "reconciler"]
PROJECT = "prj_default"
RENEW_EVERY = 1 / 12  # of the time after which a process that says nothing counts as gone
_log = logging.getLogger(__name__)


class NotReady(Exception):
    """The host must not offer its devices now; the message says why."""


@dataclass(frozen=True)
class HostDevice:
    """A slot that one attempt at a time may hold; memory in GB."""

    index: int
    kind: Literal["cpu", "cuda"]
    name: str
    memory_gb: float | None


@dataclass(frozen=True)
class Identity:
    """Who registers: the row's id, what the process is, and what people may want to know."""

    id: str
    kind: Kind
    info: dict[str, Any] = field(default_factory=dict)


def host_id(settings: Settings) -> str:
    """Return this machine's id: `POLAR_WORKER_ID`, or the one kept in the data folder.

    A new id is the host's name and a few random characters: two machines of the same name that
    share a database must not share devices.
    """
    if settings.worker_id:
        return settings.worker_id
    path = settings.home / "run" / "worker-id"
    path.parent.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40] or "host"
    draft = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    draft.write_text(f"{name}-{secrets.token_hex(3)}\n", encoding="utf-8")
    with contextlib.suppress(FileExistsError):  # another process of this host was first
        os.link(draft, path)
    draft.unlink()
    return path.read_text(encoding="utf-8").strip()


def identity(settings: Settings, kind: Kind) -> Identity:
    """Return the identity of this process; a host's worker has the id of the host itself."""
    base = host_id(settings)
    if kind == "host":
        return Identity(base, kind, {"threads_per_slot": threads_per_slot(settings)})
    return Identity(f"{base}.{kind}.{os.getpid()}", kind)


def threads_per_slot(settings: Settings) -> int:
    """Return the CPU threads that one slot may use, so that all slots together fit the machine."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, settings.cpu_slots))


def find_devices(settings: Settings) -> list[HostDevice]:
    """Return the host's CUDA devices as the driver lists them, or else its CPU slots."""
    return _cuda_devices() or _cpu_slots(settings)


def _cuda_devices() -> list[HostDevice]:
    query = ["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        _log.debug("no CUDA devices: %s", error)
        return []
    return parse_nvidia_smi(done.stdout)


def parse_nvidia_smi(output: str) -> list[HostDevice]:
    """Parse `index, name, memory in MiB` lines; a device without a readable memory has None."""
    devices = []
    for line in output.splitlines():
        index, _, rest = line.partition(",")
        name, _, memory = rest.rpartition(",")
        if not index.strip().isdigit():
            continue
        gigabytes = round(float(memory) / 1024, 1) if memory.strip().isdigit() else None
        devices.append(HostDevice(int(index), "cuda", name.strip(), gigabytes))
    return devices


def _cpu_slots(settings: Settings) -> list[HostDevice]:
    memory = psutil.virtual_memory().total / 2**30 / max(1, settings.cpu_slots)
    return [
        HostDevice(index, "cpu", _cpu_name(), round(memory, 1))
        for index in range(settings.cpu_slots)
    ]


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "CPU"


_REGISTER = text(
    """
    INSERT INTO workers (id, project_id, kind, hostname, pid, info)
    VALUES (:id, :project, :kind, :hostname, :pid, :info)
    ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, hostname = excluded.hostname,
        pid = excluded.pid, info = excluded.info, seen_at = now(),
        started_at = CASE WHEN (workers.pid, workers.hostname) = (excluded.pid, excluded.hostname)
            THEN workers.started_at ELSE now() END
    """
).bindparams(bindparam("info", type_=JSONB))

_OFFER = text(
    """
    INSERT INTO devices (worker_id, index, project_id, kind, name, memory_gb)
    VALUES (:worker, :index, :project, :kind, :name, :memory)
    ON CONFLICT (worker_id, index) DO UPDATE
        SET kind = excluded.kind, name = excluded.name, memory_gb = excluded.memory_gb
        WHERE (devices.kind, devices.name, devices.memory_gb)
            IS DISTINCT FROM (excluded.kind, excluded.name, excluded.memory_gb)
    """
)

# A device that an attempt still holds stays until it is released, even when it is gone.
_FORGET = text(
    """
    DELETE FROM devices WHERE worker_id = :worker AND attempt_id IS NULL
        AND NOT (index = ANY(CAST(:indexes AS integer[])))
    """
)


def register(session: Session, who: Identity, devices: Sequence[HostDevice] = ()) -> None:
    """Write the process's row and what its host offers."""
    session.execute(
        _REGISTER,
        {
            "id": who.id,
            "project": PROJECT,
            "kind": who.kind,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "info": who.info,
        },
    )
    for device in devices:
        session.execute(
            _OFFER,
            {
                "worker": who.id,
                "index": device.index,
                "project": PROJECT,
                "kind": device.kind,
                "name": device.name,
                "memory": device.memory_gb,
            },
        )
    _forget_missing(session, who, devices)


def renew(
    session: Session, who: Identity, gone_after: float, devices: Sequence[HostDevice] = ()
) -> bool:
    """Say that the process lives, by the database's clock.

    False when its row is gone, or was not renewed for `gone_after` seconds, so that others may have
    acted on that: it must register again.
    """
    seen = session.execute(
        text(
            "UPDATE workers SET seen_at = now() WHERE id = :id AND seen_at > now() -"
            " CAST(:gone AS float) * interval '1 second' RETURNING id"
        ),
        {"id": who.id, "gone": gone_after},
    ).first()
    _forget_missing(session, who, devices)
    return seen is not None


def _forget_missing(session: Session, who: Identity, devices: Sequence[HostDevice]) -> None:
    if who.kind == "host":
        indexes = [device.index for device in devices]
        session.execute(_FORGET, {"worker": who.id, "indexes": indexes})


# Whoever decides by it whether the host is up waits for us, and we for them.
_MINE = text("SELECT 1 FROM workers WHERE id = :id FOR NO KEY UPDATE")


def unregister(session: Session, who: Identity, offline_after: float) -> None:
    """Take the row back; a host's stays, unseen for `offline_after` seconds: attempts hold it."""
    if who.kind == "host":
        session.execute(
            text(
                "UPDATE workers SET seen_at = now() - CAST(:s AS float) * interval '1 second' "
                "WHERE id = :id AND pid = :pid"
            ),
            {"id": who.id, "s": offline_after, "pid": os.getpid()},
        )
    else:
        session.execute(text("DELETE FROM workers WHERE id = :id"), {"id": who.id})


class Registration:
    """Registers and renews from a thread, and takes the row back at the end; a context or by hand.

    While Postgres is away the thread goes on trying: the process itself is not disturbed. A host
    that was not seen for a while calls `before_offering` with its row locked; NotReady keeps it
    away.
    """

    def __init__(
        self,
        settings: Settings,
        kind: Kind,
        *,
        every: float | None = None,
        before_offering: Callable[[Session], None] | None = None,
    ) -> None:
        self._before_offering = before_offering
        self.who = identity(settings, kind)
        self.devices = find_devices(settings) if kind == "host" else []
        self._offline_after = settings.worker_timeout
        self._every = settings.worker_timeout * RENEW_EVERY if every is None else every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    def start(self) -> None:
        """Register from now on; starting again is silent."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Take the row back, if there is one; waits for the database as long as a renewal does."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=2 * self._every)
            with _tolerated("unregister"), transaction() as session:
                unregister(session, self.who, self._offline_after)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        registered = False
        while not self._stop.is_set():
            with _tolerated("renew"), transaction() as session:
                gone_after = self._offline_after
                if not (registered and renew(session, self.who, gone_after, self.devices)):
                    self._come_back(session)
                registered = True
            self._stop.wait(self._every)

    def _come_back(self, session: Session) -> None:
        if self._before_offering:
            session.execute(_MINE, {"id": self.who.id})
            self._before_offering(session)
        register(session, self.who, self.devices)


@contextlib.contextmanager
def _tolerated(what: str) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        _log.warning("%s: the database does not answer: %s", what, type(error).__name__)
    except NotReady as error:
        _log.error("this host offers nothing: %s", error)
