"""Whatever is sent while the database restarts and the broker is gone: no 5xx but an honest 503."""

import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode

from polar.stack import spawn
from polar.stack.ports import free_ports
from polar.stack.services import Postgres, SeaweedFS, Valkey, wait_ready
from tests.app.server import Api, environment, run_app, running
from tests.app.test_openapi import DOCUMENT, operations
from tests.services import S3, migrate, wait_until


@dataclass
class Shaky:
    """An API whose database and broker are killed and started again, over and over."""

    api: Api
    services: list[Postgres | Valkey]
    folder: Path
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    outages: int = 0

    def shake_until(self, done: Callable[[], bool]) -> None:
        """Kill one, leave it away for a while, start it, let it be, and take the other.

        For the thread that started them: services die with it.
        """
        while not done():
            for number, service in enumerate(self.services):
                self.processes[number].kill()
                self.processes[number].wait(10)
                self.outages += 1
                time.sleep(0.5)  # the outage
                self.processes[number] = start(service, self.folder)
                time.sleep(1.0)


def start(service: Postgres | Valkey, folder: Path) -> subprocess.Popen[bytes]:
    """Start a service and wait for it: one that was killed needs a moment for itself."""
    name = type(service).__name__.lower()
    for _ in range(20):
        process = spawn.start(service.command(), folder / f"{name}.log")
        try:
            wait_ready(service.is_ready, name, timeout=20)
        except Exception:  # noqa: BLE001 - whatever it is, the next start may do
            process.kill()
            process.wait(10)
        else:
            return process
    raise AssertionError(f"{name} does not start again")


@pytest.fixture(scope="module")
def shaky(tmp_path_factory: pytest.TempPathFactory, seaweed: SeaweedFS) -> Iterator[Shaky]:
    folder = tmp_path_factory.mktemp("shaky")
    ports = free_ports(2)
    postgres = Postgres(folder / "postgres", folder / "secrets" / "postgres", ports[0])
    valkey = Valkey(folder / "valkey", folder / "secrets" / "valkey", ports[1])
    for service in (postgres, valkey):
        service.prepare()
    processes = {n: start(s, folder) for n, s in enumerate((postgres, valkey))}
    postgres.ensure_database("polar")
    migrate(postgres, "polar")
    bucket = f"shaky-{secrets.token_hex(4)}"
    seaweed.client().create_bucket(Bucket=bucket)
    s3 = S3(seaweed.endpoint, *seaweed.keys, bucket=bucket, region=seaweed.region)
    variables = environment(postgres.url("polar"), valkey.url, s3, folder)
    variables |= {"POLAR_RATE_LIMIT": "5000", "POLAR_RATE_BURST": "5000"}
    key = run_app("first-key", variables).stdout.strip()
    with running(variables, key) as api:
        found = Shaky(api, [postgres, valkey], folder, processes)
        yield found
    for process in found.processes.values():
        process.kill()
        process.wait(10)


def is_honest(answer: Any) -> bool:
    """A 503 that says what is away and when to come again."""
    return (
        answer.status_code == 503
        and answer.headers["content-type"] == ["application/problem+json"]
        and int(answer.headers["retry-after"][0]) >= 1
    )


@pytest.mark.drill
def test_no_5xx_but_503_while_parts_are_killed(shaky: Shaky) -> None:
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.config.update(base_url=shaky.api.url)
    headers = {"Authorization": f"Bearer {shaky.api.key}", "Accept": "application/json"}
    statuses: Counter[int] = Counter()
    wrong: list[str] = []

    def send_all(method: str, path: str) -> None:
        operation = schema[path][method.upper()]

        @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
        @settings(
            max_examples=8,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def send(case: Any) -> None:
            answer = case.call(headers=headers, timeout=60)
            statuses[answer.status_code] += 1
            documented = str(answer.status_code) in DOCUMENT["paths"][path][method]["responses"]
            honest = path == "/readyz" or is_honest(answer)  # it lists what is missing
            if (answer.status_code >= 500 and not honest) or not documented:
                wrong.append(f"{method} {path}: {answer.status_code} {answer.text[:300]}")

        send()

    def send_everything() -> None:
        began = time.monotonic()
        while statuses[503] < 20 and time.monotonic() - began < 120:
            for method, path, _ in operations():
                send_all(method, path)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_everything)
        shaky.shake_until(sending.done)
        sending.result()
    assert wrong == []
    assert statuses[503] >= 20, statuses  # or nothing was shown
    assert shaky.outages > 2
    wait_until(lambda: shaky.api.client.get("/jobs").status_code == 200, timeout=30)
    assert shaky.api.process.poll() is None
