"""A store that takes connections and says nothing holds those who want something of it, and no
others."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from polar.stack import spawn
from polar.stack.ports import free_ports
from polar.stack.services import Postgres, SeaweedFS, SeaweedPorts, Valkey, wait_ready
from tests.app.resources import JOB, dataset, job
from tests.app.server import Api, environment, run_app, running
from tests.services import S3, migrate

CLIENTS = 40  # more than the API has threads
PATIENCE = 30  # seconds; who is held waits for more than a minute


@dataclass
class Freezing:
    """An API whose store can be stopped and gone on with."""

    api: Api
    store: subprocess.Popen[bytes]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.store.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.store.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def freezing(
    postgres: Postgres, valkey: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Freezing]:
    folder = tmp_path_factory.mktemp("frozen")
    store = SeaweedFS(folder / "s3", folder / "secrets" / "s3", SeaweedPorts(*free_ports(10)))
    store.prepare()
    command = store.command()
    process = spawn.start(command, folder / "s3.log")
    postgres.ensure_database("frozen")
    migrate(postgres, "frozen")
    try:
        wait_ready(store.is_ready, "s3", timeout=60)
        s3 = S3(store.endpoint, *store.keys, bucket=store.bucket, region=store.region)
        variables = environment(postgres.url("frozen"), valkey.url, s3, folder)
        key = run_app("first-key", variables).stdout.strip()
        with running(variables, key) as api:
            yield Freezing(api, process)
    finally:
        spawn.stop(process, command)


class Client:
    """A request on a connection of its own, whose answer is read later."""

    def __init__(self, api: Api, path: str) -> None:
        where = httpx.URL(api.url)
        self._socket = socket.create_connection((where.host, where.port), timeout=PATIENCE)
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: polar\r\nConnection: close\r\n"
            f"Authorization: Bearer {api.key}\r\n\r\n".encode()
        )

    def status(self) -> int:
        """Read the answer to its end."""
        with self._socket, self._socket.makefile("rb") as file:
            return int(file.read().split(b" ", 2)[1])


def test_a_frozen_store_holds_nobody_who_does_not_want_it(freezing: Freezing) -> None:
    api = freezing.api
    held = job(api)
    paths = [
        f"/datasets/{dataset(api)['dataset_id']}/preview",
        f"/jobs/{held['job_id']}/artifacts/{held['path']}",
        f"/jobs/{held['job_id']}/artifacts.tar",
    ]
    newcomer = api.role("viewer")  # a key that must be looked up
    newcomer.timeout = api.client.timeout = httpx.Timeout(PATIENCE)
    with freezing.frozen():
        readers = [Client(api, paths[number % len(paths)]) for number in range(CLIENTS)]
        looks = [Client(api, "/readyz") for _ in range(2 * CLIENTS)]
        assert newcomer.get("/jobs").status_code == 200
        assert api.client.post("/jobs", json=JOB).status_code == 201
        assert api.client.get(f"/jobs/{held['job_id']}/logs").status_code == 200
        assert api.client.get(f"/jobs/{held['job_id']}/metrics").status_code == 200
        ready = api.client.get("/readyz")
        assert (ready.status_code, ready.json()["missing"]) == (503, ["store"])
        assert {look.status() for look in looks} == {503}
    assert {reader.status() for reader in readers} == {200}
