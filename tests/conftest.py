"""Real services for the tests, started at most once per session and only when asked for."""

import os
import secrets
import sys
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import psycopg.sql
import pytest
import redis

from polar.stack import spawn
from polar.stack.ports import free_ports
from polar.stack.services import Postgres, SeaweedFS, SeaweedPorts, Valkey, wait_ready
from tests.services import S3, migrate


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say at once what failed: a run that is broken off prints no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:  # its reports come to one process
        last = report.longreprtext.splitlines()[-30:]
        print("", report.nodeid, report.when, *last, sep="\n", file=sys.__stdout__, flush=True)


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Three of four tests that are `sampled` are `slow`: always the same ones, wherever.

    The stack of `e2e` is up from its first test to the end, and takes its share of the cores all
    the time: its tests come last.
    """
    items.sort(key=lambda item: item.path.parent.name == "e2e")
    for item in items:
        if item.get_closest_marker("sampled") and zlib.crc32(item.nodeid.encode()) % 4:
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """What a fixture of more than one test leaves in the environment is not for all that follow."""
    before = dict(os.environ)
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function" and dict(os.environ) != before:
            os.environ.clear()
            os.environ.update(before)


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Libraries set variables when they are imported or run here; no other test is to see them."""
    before = dict(os.environ)
    yield
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def service_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose name has a space and Korean letters, as users' folders do."""
    return tmp_path_factory.mktemp("서비스 폴더")


def _running(service: Postgres | Valkey | SeaweedFS, folder: Path) -> Iterator[None]:
    service.prepare()
    command = service.command()
    name = type(service).__name__.lower()
    process = spawn.start(command, folder / "logs" / f"{name}.log")
    try:
        wait_ready(service.is_ready, name, timeout=60)
        yield
    finally:
        spawn.stop(process, command)


@pytest.fixture(scope="session")
def postgres(service_folder: Path) -> Iterator[Postgres]:
    """A Postgres server; it may forget everything in a crash, which makes tests quick."""
    server = Postgres(
        service_folder / "postgres",
        service_folder / "secrets" / "postgres",
        free_ports(1)[0],
        settings=("fsync=off", "synchronous_commit=off", "full_page_writes=off"),
    )
    for _ in _running(server, service_folder):
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres: Postgres) -> str:
    """SQLAlchemy URL of the session's server, at its database `postgres`."""
    return postgres.url("postgres")


@pytest.fixture(scope="session")
def migrated_template(postgres: Postgres) -> str:
    """The name of a migrated database that nobody connects to, so that copies are quick."""
    postgres.ensure_database("migrated")
    migrate(postgres, "migrated")
    return "migrated"


@pytest.fixture
def database_url(postgres: Postgres, migrated_template: str) -> Iterator[str]:
    """SQLAlchemy URL of a fresh, migrated database of this test alone."""
    name = f"test_{secrets.token_hex(6)}"
    identifiers = map(psycopg.sql.Identifier, (name, migrated_template))
    with postgres.connect() as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*identifiers))
    yield postgres.url(name)
    with postgres.connect() as connection:
        drop = psycopg.sql.SQL("DROP DATABASE {} WITH (FORCE)").format(psycopg.sql.Identifier(name))
        connection.execute(drop)


@pytest.fixture(scope="session")
def valkey(service_folder: Path) -> Iterator[Valkey]:
    """A Valkey server of the session."""
    server = Valkey(
        service_folder / "valkey", service_folder / "secrets" / "valkey", free_ports(1)[0]
    )
    for _ in _running(server, service_folder):
        yield server


@pytest.fixture
def valkey_url(valkey: Valkey) -> str:
    """Broker URL of the session's server, emptied for this test."""
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    return valkey.url


@pytest.fixture(scope="session")
def seaweed(service_folder: Path) -> Iterator[SeaweedFS]:
    """An S3 store of the session."""
    ports = SeaweedPorts(*free_ports(10))
    server = SeaweedFS(service_folder / "s3", service_folder / "secrets" / "s3", ports)
    for _ in _running(server, service_folder):
        yield server


@pytest.fixture
def s3(seaweed: SeaweedFS) -> Iterator[S3]:
    """Endpoint and keys of the session's store, with a fresh bucket of this test alone."""
    bucket = f"test-{secrets.token_hex(6)}"
    client = seaweed.client()
    client.create_bucket(Bucket=bucket)
    yield S3(seaweed.endpoint, *seaweed.keys, bucket=bucket, region=seaweed.region)
    # Each bucket holds volumes of its own, and the store has only so many.
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for found in page.get("Contents", ()):
            client.delete_object(Bucket=bucket, Key=found["Key"])
    client.delete_bucket(Bucket=bucket)
