"""`POST /jobs` against the same rows by bare psycopg and `send_task`; memory of the idle API.

Both sides use the same database and broker, one after the other in turns, so that what else the
machine does falls on both. What counts are the ratios of medians.
"""

import concurrent.futures
import http.client
import json
import os
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import celery
import psutil
import psycopg
from psycopg.types.json import Jsonb

from bench import services
from bench.services import install, up
from polar.stack.ports import free_ports
from polar.stack.services import Postgres, Valkey

ROOT = Path(__file__).parent.parent
SPEC = {
    "name": "bench",
    "labels": {"team": "search"},
    "task": {"type": "sft", "packing": True, "max_length": 512},
    "model": {"source": "hub", "name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"},
    "data": {"train": [{"source": "hub", "path": "org/shop"}], "validation": {"split_ratio": 0.05}},
    "training": {"learning_rate": 2e-4, "num_train_epochs": 3},
    "adapter": {"type": "lora", "r": 16},
}
MEMORY_LIMIT_MB = 150
Submit = Callable[[], None]


@dataclass(frozen=True)
class Limits:
    """What the API may cost; ratios to the bare code."""

    time_one: float = 2.0
    rate_many: float = 0.6


class Bare:
    """The least code that does the same: one transaction of the same rows, then `send_task`."""

    def __init__(self, dsn: str, broker: str, answer: dict[str, object]) -> None:
        self._dsn = dsn
        self._answer, self._resolved = answer, answer["resolved"]
        self._local = threading.local()
        self._celery = celery.Celery(broker=broker)
        self._celery.conf.broker_pool_limit = 64

    def submit(self) -> None:
        """Write a job and hint its preparation."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = psycopg.connect(self._dsn)
        job_id = f"job_{secrets.token_hex(13)}"
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute(
                """INSERT INTO idempotency_keys (project_id, key, body_hash, status_code, response)
                VALUES ('prj_default', %s, 'hash', 201, %s)""",
                [secrets.token_hex(8), Jsonb({**self._answer, "id": job_id})],
            )
            cursor.execute(
                """INSERT INTO jobs (id, project_id, name, labels, phase, task_type, backend,
                target, spec, resolved, max_attempts, last_seq) VALUES (%s, 'prj_default', 'bench',
                %s, 'preparing', 'sft', 'hf', 'local', %s, %s, 3, 1)""",
                [job_id, Jsonb(SPEC["labels"]), Jsonb(SPEC), Jsonb(self._resolved)],
            )
            cursor.execute(
                """INSERT INTO job_events (job_id, seq, project_id, type, data)
                VALUES (%s, 1, 'prj_default', 'status', '{"status": "queued"}')""",
                [job_id],
            )
            cursor.execute(
                "INSERT INTO preparations (job_id, project_id) VALUES (%s, 'prj_default')", [job_id]
            )
        self._celery.send_task("prepare", args=[job_id], queue="bare", ignore_result=True)


class OverHttp:
    """The same through the API, with a key and an Idempotency-Key, on kept-alive connections."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self._local = threading.local()
        self._body = json.dumps(SPEC)

    def submit(self) -> None:
        """Submit a job."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            self._local.connection = connection
        headers = {
            "Authorization": f"Bearer {self._key}",
            "Content-Type": "application/json",
            "Idempotency-Key": secrets.token_hex(8),
        }
        connection.request("POST", "/jobs", self._body, headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 201:
            raise RuntimeError(content.decode())


def one_client(submit: Submit, count: int) -> float:
    """Return the median time of `count` submissions in seconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        submit()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def many_clients(submit: Submit, clients: int, count: int) -> float:
    """Return submissions per second of so many clients at once."""

    def work(_: int) -> None:
        for _ in range(count):
            submit()

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(work, range(clients)))  # connects
        began = time.perf_counter()
        list(pool.map(work, range(clients)))
        return clients * count / (time.perf_counter() - began)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Bare, OverHttp, psutil.Process]]:
    """Start Postgres and Valkey with the settings of the stack, and the API on them."""
    ports = free_ports(3)
    postgres = Postgres(folder / "postgres", folder / "secrets" / "postgres", ports[0])
    valkey = Valkey(folder / "valkey", folder / "secrets" / "valkey", ports[1])
    with up((postgres, valkey), folder / "service.log"):
        api = install(folder, postgres, valkey, ports[2])
        with services.serving(api.variables, folder / "api.log") as pid:
            answer = _first_answer(ports[2], api.key)
            dsn = postgres.url().replace("postgresql+psycopg://", "postgresql://")
            bare = Bare(dsn, valkey.url, answer)
            yield bare, OverHttp(ports[2], api.key), psutil.Process(pid)


def _first_answer(port: int, key: str) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", "/jobs", json.dumps(SPEC), headers)
    found: dict[str, object] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def main() -> int:
    """Measure and print; 1 when a limit is broken."""
    limits = Limits()
    quick = bool(os.environ.get("BENCH_QUICK"))
    rounds, singles, each = (3, 30, 5) if quick else (7, 100, 20)
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as (bare, api, process):
        idle = process.memory_info().rss / 2**20
        sides: dict[str, Submit] = {"bare": bare.submit, "api": api.submit}
        one: dict[str, list[float]] = {side: [] for side in sides}
        many: dict[str, list[float]] = {side: [] for side in sides}
        for submit in sides.values():
            one_client(submit, 20)  # warm both
        for _ in range(rounds):
            for side, submit in sides.items():
                one[side].append(one_client(submit, singles))
            for side, submit in sides.items():
                many[side].append(many_clients(submit, 32, each))
        loaded = process.memory_info().rss / 2**20
    return _report(limits, one, many, (idle, loaded))


def _report(
    limits: Limits,
    one: dict[str, list[float]],
    many: dict[str, list[float]],
    memory: tuple[float, float],
) -> int:
    time_ratio = statistics.median(a / b for a, b in zip(one["api"], one["bare"], strict=True))
    rate_ratio = statistics.median(a / b for a, b in zip(many["api"], many["bare"], strict=True))
    lines = [
        (
            "1 client",
            "ms",
            1000 * statistics.median(one["api"]),
            1000 * statistics.median(one["bare"]),
        ),
        ("32 clients", "jobs/s", statistics.median(many["api"]), statistics.median(many["bare"])),
    ]
    print("submit          unit        api      bare")
    for label, unit, ours, theirs in lines:
        print(f"{label:<15} {unit:<8} {ours:>8.2f}  {theirs:>8.2f}")
    ok = {
        f"time at 1 client    {time_ratio:.2f}× of bare (at most {limits.time_one}×)": time_ratio
        <= limits.time_one,
        f"rate at 32 clients  {rate_ratio:.2f}× of bare (at least {limits.rate_many}×)": rate_ratio
        >= limits.rate_many,
        f"memory of the API   {memory[0]:.0f} MB idle, {memory[1]:.0f} MB after load "
        f"(at most {MEMORY_LIMIT_MB} MB)": memory[0] <= MEMORY_LIMIT_MB,
    }
    for text, holds in ok.items():
        print(f"{'ok ' if holds else 'NOT'} {text}")
    return 0 if all(ok.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
