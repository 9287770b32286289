"""Postgres, Valkey and the API with a pool of five connections, for the measurements of streams."""

import http.client
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import redis
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from app.events.store import append_events
from app.settings import get_settings
from bench.services import answers, install, serving, up
from bench.streams_bare import CHANNEL
from polar.stack.ports import free_ports
from polar.stack.services import Postgres, SeaweedFS, SeaweedPorts, Valkey, wait_ready

ROOT = Path(__file__).parent.parent
POOL = 5
SPEC: dict[str, Any] = {
    "name": "bench",
    "labels": {"team": "search"},
    "task": {"type": "sft", "packing": True, "max_length": 512},
    "model": {"source": "hub", "name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"},
    "data": {"train": [{"source": "hub", "path": "org/shop"}], "validation": {"split_ratio": 0.05}},
    "training": {"learning_rate": 2e-4, "num_train_epochs": 3},
    "adapter": {"type": "lora", "r": 16},
}


@dataclass
class Rig:
    """What runs, and how to reach it."""

    database: str
    broker: str
    port: int
    bare_port: int
    key: str
    api_pid: int
    variables: dict[str, str]
    folder: Path
    engine: Any = field(init=False)
    valkey: redis.Redis = field(init=False)
    _client: "Client | None" = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.engine = create_engine(self.database)
        self.valkey = redis.Redis.from_url(self.broker)

    @property
    def dsn(self) -> str:
        """The database for psycopg."""
        return self.database.replace("+psycopg", "")

    def connect(self) -> psycopg.Connection[Any]:
        """Open an autocommit connection."""
        return psycopg.connect(self.dsn, autocommit=True)

    def jobs(self, count: int) -> list[str]:
        """Make running jobs without events."""
        made = [f"job_{secrets.token_hex(13).upper()}" for _ in range(count)]
        with self.connect() as connection:
            for job in made:
                connection.execute(JOB, [job])
        return made

    def kept_client(self) -> "Client":
        """Return the same client each time."""
        if self._client is None:
            self._client = self.client()
        return self._client

    def client(self) -> "Client":
        """Return a client of the API on one kept-alive connection."""
        return Client(self.port, self.key)


JOB = """INSERT INTO jobs (id, project_id, name, task_type, backend, target, spec, resolved,
    max_attempts) VALUES (%s, 'prj_default', 'bench', 'sft', 'hf', 'local', '{}', '{}', 1)"""


class Client:
    """A client with one connection, so that its times are the server's."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"Authorization": f"Bearer {key}"}

    def ask(self, method: str, path: str, body: Any = None) -> tuple[float, bytes]:
        """Return (seconds, answer); raises RuntimeError for anything but a success."""
        headers, data = dict(self._headers), None
        if body is not None:
            headers |= {"Content-Type": "application/json", "Idempotency-Key": secrets.token_hex(8)}
            data = json.dumps(body)
        began = time.perf_counter()
        self._connection.request(method, path, data, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        seconds = time.perf_counter() - began
        if answer.status >= 300:
            raise RuntimeError(content.decode())
        return seconds, content

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def log_event(number: int) -> dict[str, Any]:
    """Return an event as trainers log them, of about 150 bytes."""
    message = f"{{'loss': 1.2845, 'learning_rate': 0.00018, 'epoch': 0.31, 'number': {number}}}"
    return {"type": "log", "data": {"level": "info", "message": message}}


class Writer:
    """Commits events at a rate, as carriers do, and notes when each was committed."""

    def __init__(self, rig: Rig, jobs: Sequence[str], *, publish: bool) -> None:
        self._rig, self._jobs, self._publish = rig, jobs, publish
        with rig.connect() as connection:
            query = "SELECT id, last_seq FROM jobs WHERE id = ANY(%s)"
            self.last: dict[str, int] = dict(connection.execute(query, [list(jobs)]).fetchall())
        self.committed: dict[str, dict[str, float]] = {path_of(job): {} for job in jobs}

    def run(self, seconds: float, rate: float) -> None:
        """Write `rate` events a second, one transaction each, to the jobs in turns."""
        began = time.monotonic()
        for number in range(int(seconds * rate)):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            self._write(self._jobs[number % len(self._jobs)], number)

    def _write(self, job: str, number: int) -> None:
        event = log_event(number)
        with Session(self._rig.engine) as session, session.begin():
            append_events(session, job, [event])
        committed = time.monotonic()
        self.last[job] = seq = self.last[job] + 1
        self.committed[path_of(job)][str(seq)] = committed
        if self._publish:
            body = json.dumps({"seq": seq, "job_id": job, "time": "2026-11-30T10:00:00Z", **event})
            frame = f"{path_of(job)}\nid: {seq}\ndata: {body}\n\n"
            self._rig.valkey.publish(CHANNEL, frame)


def path_of(job: str) -> str:
    """Return the path of a job's stream."""
    return f"/jobs/{job}/events"


@contextmanager
def watching(
    port: int, key: str, paths: Sequence[tuple[str, int]]
) -> Iterator[Callable[[dict[str, dict[str, float]]], dict[str, float]]]:
    """Open these streams (path, after) in a process; yield what compares them with commits."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.streams_watch"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps({"port": port, "key": key, "paths": paths}) + "\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == "ready", "not all streams were opened"

        def compare(committed: dict[str, dict[str, float]]) -> dict[str, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"committed": committed}) + "\n")
            process.stdin.flush()
            found: dict[str, float] = json.loads(process.stdout.readline())
            return found

        yield compare
    finally:
        process.kill()
        process.wait()


@contextmanager
def running(folder: Path, *, store: bool = False) -> Iterator[Rig]:
    """Start everything below `folder`, which is thrown away afterwards."""
    ports = free_ports(14)
    postgres = Postgres(folder / "postgres", folder / "secrets" / "postgres", ports[0], POSTGRES)
    valkey = Valkey(folder / "valkey", folder / "secrets" / "valkey", ports[1])
    seaweed = SeaweedFS(folder / "s3", folder / "secrets" / "s3", SeaweedPorts(*ports[4:]))
    services = (postgres, valkey, seaweed) if store else (postgres, valkey)
    more = _store_variables(seaweed) if store else {}
    with ExitStack() as stack:
        stack.enter_context(up(services, folder / "service.log"))
        api = install(folder, postgres, valkey, ports[2], POLAR_THREADS=str(POOL), **more)
        pid = stack.enter_context(serving(api.variables, folder / "api.log"))
        stack.enter_context(_bare(ports[3], valkey.url))
        wait_ready(partial(answers, ports[3]), "the bare program", timeout=60)
        # What writes here nudges through the product's own settings.
        os.environ.update(api.variables)
        get_settings.cache_clear()
        yield Rig(
            postgres.url(), valkey.url, ports[2], ports[3], api.key, pid, api.variables, folder
        )


@contextmanager
def copied(rig: Rig, name: str) -> Iterator[Rig]:
    """Copy the database as it is, and serve the copy with an API of its own beside."""
    rig.engine.dispose()
    with psycopg.connect(rig.dsn.rpartition("/")[0] + "/postgres", autocommit=True) as connection:
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'polar'"
        connection.execute(end)
        connection.execute(f"CREATE DATABASE {name} TEMPLATE polar")
    database = rig.database.rpartition("/")[0] + f"/{name}"
    port = free_ports(1)[0]
    variables = {**rig.variables, "POLAR_DATABASE_URL": database, "POLAR_PORT": str(port)}
    with serving(variables, rig.folder / f"{name}.log") as pid:
        yield replace(rig, database=database, port=port, api_pid=pid, variables=variables)


def _store_variables(seaweed: SeaweedFS) -> dict[str, str]:
    access, secret = seaweed.keys
    return {"S3_ENDPOINT": seaweed.endpoint, "S3_ACCESS_KEY": access, "S3_SECRET_KEY": secret}


@contextmanager
def _bare(port: int, broker: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.streams_bare", str(port)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(broker + "\n")
        process.stdin.flush()
        yield
    finally:
        process.kill()
        process.wait()


# Durable as in the stack; the memory is what a small server of its own would have.
POSTGRES = ("shared_buffers=512MB", "max_wal_size=4GB", "maintenance_work_mem=512MB")
