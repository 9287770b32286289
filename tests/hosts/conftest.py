"""One service and one second host for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from polar.stack.home import Home
from tests.e2e.conftest import write_rows
from tests.e2e.harness import SETTINGS, TERMINAL, World, running_stack
from tests.hosts.site import Links, SecondHost, joined, linked
from tests.services import wait_until
from tests.trainer_core.tiny import make_tiny_model

# The second host has more to do to be slow and cut off: a lease lasts a little longer.
HOST_SETTINGS = {**SETTINGS, "POLAR_CPU_SLOTS": "1", "POLAR_WORKER_TIMEOUT": "8"}


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("서비스와 호스트")
    data = root / "data"
    data.mkdir()
    write_rows(data / "rows.jsonl", 40)
    model = make_tiny_model(root / "models" / "tiny")
    with running_stack(root / "home", model, data, HOST_SETTINGS) as world:
        yield world


@pytest.fixture(scope="package")
def links(service: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Links]:
    with linked(service, tmp_path_factory.mktemp("d")) as laid:
        yield laid


@pytest.fixture(scope="package")
def second(
    service: World, links: Links, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecondHost]:
    home = Home(tmp_path_factory.mktemp("둘째 호스트") / "home")
    with joined(service, links, home, HOST_SETTINGS) as host:
        yield host


@pytest.fixture
def first(service: World, second: SecondHost) -> str:
    """The id of the service's own host."""
    path: Path = service.home.run / "worker-id"
    name = path.read_text(encoding="utf-8").strip()
    assert name != second.id
    return name


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Cancel what a failed test left open, and let both hosts work again."""
    yield
    if "service" not in request.fixturenames:
        return
    service: World = request.getfixturevalue("service")
    for job in service.client.jobs(limit=50):
        if job["status"] not in TERMINAL:
            service.client.cancel(job["id"])
            wait_until(lambda job=job: service.get(job["id"])["status"] in TERMINAL, timeout=60)
    service.sql("UPDATE workers SET draining = false WHERE kind = 'host'")
