"""Workers say that they live, by the database's clock, and hosts offer their devices."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from app.db import transaction
from app.settings import Settings
from tests.services import wait_until
from tests.worker.world import add_job, one, rows, run_sql
from worker.placement import place
from worker.registration import (
    HostDevice,
    Identity,
    Registration,
    host_id,
    parse_nvidia_smi,
    register,
    renew,
)


def test_a_hosts_id_is_made_once_even_by_many_processes(settings: Settings):
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: host_id(settings), range(32)))
    assert len(ids) == 1
    assert (settings.home / "run" / "worker-id").read_text().strip() in ids
    assert [p.name for p in (settings.home / "run").iterdir()] == ["worker-id"]


def test_nvidia_smi_lines_become_devices():
    output = "0, NVIDIA H200, 143771\n1, NVIDIA GeForce RTX 4090, 24564\n2, NVIDIA GB10, [N/A]\n"
    assert parse_nvidia_smi(output) == [
        HostDevice(0, "cuda", "NVIDIA H200", 140.4),
        HostDevice(1, "cuda", "NVIDIA GeForce RTX 4090", 24.0),
        HostDevice(2, "cuda", "NVIDIA GB10", None),
    ]
    assert parse_nvidia_smi("No devices were found\n") == []


def test_a_host_registers_its_slots_renews_and_goes_offline_on_exit(settings: Settings):
    with Registration(settings, "host", every=0.05) as registration:
        wait_until(lambda: one("SELECT count(*) FROM devices"))
        [(kind, pid, started, seen)] = rows("SELECT kind, pid, started_at, seen_at FROM workers")
        assert (kind, pid) == ("host", os.getpid())
        wait_until(lambda: one("SELECT seen_at FROM workers") > seen)
        assert one("SELECT started_at FROM workers") == started
    assert registration.who.id == host_id(settings)
    assert one("SELECT now() - seen_at >= interval '60 seconds' FROM workers")
    assert one("SELECT count(*) FROM devices") == len(registration.devices)


def test_others_take_their_row_back_on_exit(settings: Settings):
    with Registration(settings, "control", every=0.05) as registration:
        wait_until(lambda: one("SELECT count(*) FROM workers"))
        assert one("SELECT id FROM workers") == registration.who.id
    assert one("SELECT count(*) FROM workers") == 0


def test_a_row_that_was_deleted_is_written_again(settings: Settings):
    with Registration(settings, "prepare", every=0.05):
        wait_until(lambda: one("SELECT count(*) FROM workers"))
        run_sql("DELETE FROM workers")
        wait_until(lambda: one("SELECT count(*) FROM workers"))


def test_renewing_goes_on_after_the_database_was_away(settings: Settings, database_url: str):
    url = make_url(database_url)
    admin = url.set(drivername="postgresql", database="postgres")
    with Registration(settings, "control", every=0.05):
        wait_until(lambda: one("SELECT count(*) FROM workers"))
        with psycopg.connect(
            admin.render_as_string(hide_password=False), autocommit=True
        ) as server:
            server.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS false")
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                [url.database],
            )
            server.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS true")
        with suppress(DBAPIError):
            one("SELECT 1")
        before = wait_until(lambda: one("SELECT now()"))
        wait_until(lambda: one("SELECT seen_at FROM workers") > before)


def test_a_device_that_is_gone_stays_while_an_attempt_holds_it(settings: Settings):
    del settings
    host = Identity("h1", "host")
    two = [HostDevice(i, "cuda", "NVIDIA H200", 140.0) for i in range(2)]
    with transaction() as session:
        register(session, host, two)
    add_job()
    add_job()
    with transaction() as session:
        assert place(session, "r") == 2
    run_sql("UPDATE devices SET attempt_id = NULL WHERE index = 1")
    with transaction() as session:
        assert renew(session, host, 60.0, [])
    assert rows("SELECT index FROM devices") == [(0,)]
    with transaction() as session:
        register(session, host, [HostDevice(1, "cpu", "CPU", 8.0)])
    assert rows("SELECT index, kind, attempt_id IS NULL FROM devices ORDER BY index") == [
        (0, "cuda", False),
        (1, "cpu", True),
    ]


@pytest.mark.parametrize("slots", [1, 3])
def test_cpu_slots_share_the_threads(
    settings: Settings, slots: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    registration = Registration(settings.model_copy(update={"cpu_slots": slots}), "host")
    assert [d.index for d in registration.devices] == list(range(slots))
    assert registration.who.info == {"threads_per_slot": 6 // slots}
