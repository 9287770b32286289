"""The room's processes as they really run: ready, working, stopped, and patient with the broker."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from app.db import transaction
from app.outbox import CONTROL_QUEUE, hint
from app.settings import Settings
from polar.stack import spawn
from polar.stack.ports import free_ports
from polar.stack.services import Valkey, wait_ready
from tests.services import ROOT, wait_until
from tests.worker.conftest import forget
from tests.worker.world import PROJECT, add_host, add_job, one, rows, run_sql


class Processes:
    """Processes of ours, stopped at the end whatever happens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `python -m worker …` with the environment of the test."""
        log = self._folder / f"{'-'.join(arguments)}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "worker", *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._all.append(process)
        return process

    def log(self, *arguments: str) -> str:
        return (self._folder / f"{'-'.join(arguments)}.log").read_text()

    def close(self) -> None:
        for process in self._all:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    (tmp_path / "logs").mkdir()
    started = Processes(tmp_path / "logs")
    yield started
    started.close()


def seen(pid: int) -> bool:
    return bool(one("SELECT 1 FROM workers WHERE pid = :pid", pid=pid))


def stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(20)


def ask_for_housekeeping() -> str:
    """Write something that housekeeping removes, and the hint for it; returns its key."""
    key = secrets.token_hex(4)
    with transaction() as session:
        hint(session, PROJECT, CONTROL_QUEUE, "housekeeping")
    run_sql(
        "INSERT INTO idempotency_keys (project_id, key, body_hash, created_at)"
        " VALUES (:p, :k, 'x', now() - interval '1 year')",
        p=PROJECT,
        k=key,
    )
    return key


def housekept(key: str) -> bool:
    return not one("SELECT 1 FROM idempotency_keys WHERE key = :k", k=key)


@pytest.mark.parametrize(
    "arguments",
    [("reconciler",), ("celery", "control"), ("celery", "prepare"), ("celery", "host")],
)
def test_a_process_registers_and_ends_cleanly(
    settings: Settings, processes: Processes, arguments: Sequence[str]
):
    del settings
    process = processes.start(*arguments)
    wait_until(lambda: seen(process.pid), timeout=30)
    kind = arguments[-1]
    assert rows("SELECT kind FROM workers") == [(kind,)]
    assert stop(process) == 0, processes.log(*arguments)
    if kind == "host":
        assert one("SELECT seen_at < now() - interval '59 s' FROM workers")
    else:
        assert rows("SELECT kind FROM workers") == []
    assert "Traceback" not in processes.log(*arguments)
    password = os.environ["POLAR_BROKER_URL"].split(":")[2].partition("@")[0]
    assert password not in processes.log(*arguments)


def test_hints_reach_their_handler_also_after_the_broker_was_killed(
    store_settings: Settings,
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    del store_settings
    broker = Valkey(tmp_path / "valkey", tmp_path / "password", free_ports(1)[0])
    broker.prepare()
    monkeypatch.setenv("POLAR_BROKER_URL", broker.url)
    log = tmp_path / "valkey.log"
    server = spawn.start(broker.command(), log)
    try:
        wait_ready(broker.is_ready, "valkey", 20)
        for arguments in (("reconciler",), ("celery", "control")):
            process = processes.start(*arguments)
            wait_until(lambda pid=process.pid: seen(pid), timeout=30)
        first = ask_for_housekeeping()
        wait_until(lambda: housekept(first), timeout=20)

        server.kill()
        server.wait(10)
        second = ask_for_housekeeping()
        # The hint waits in the outbox; the rest of the reconciler lives on meanwhile.
        before = one("SELECT seen_at FROM workers WHERE kind = 'reconciler'")
        wait_until(
            lambda: one("SELECT seen_at FROM workers WHERE kind = 'reconciler'") > before,
            timeout=20,
        )
        assert one("SELECT count(*) FROM outbox") == 1
        server = spawn.start(broker.command(), log)
        wait_until(lambda: housekept(second), timeout=60)
        assert one("SELECT count(*) FROM outbox") == 0
    finally:
        server.kill()
        server.wait(10)


def test_the_reconciler_goes_on_after_the_database_was_away(
    settings: Settings, processes: Processes, database_url: str
):
    del settings
    process = processes.start("reconciler")
    wait_until(lambda: seen(process.pid), timeout=30)
    url = make_url(database_url)
    admin = url.set(drivername="postgresql", database="postgres")
    with psycopg.connect(admin.render_as_string(hide_password=False), autocommit=True) as server:
        server.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS false")
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            [url.database],
        )
        wait_until(lambda: "; again in 1.0 s" in processes.log("reconciler"), timeout=20)
        server.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS true")
    forget()
    add_host("h1", slots=1)
    job = add_job()
    placed = "SELECT 1 FROM attempts WHERE job_id = :job"
    wait_until(lambda: one(placed, job=job), timeout=30)
    assert process.poll() is None
    assert stop(process) == 0


def test_two_reconcilers_share_the_work(settings: Settings, processes: Processes):
    del settings
    for process in [processes.start("reconciler") for _ in range(2)]:
        wait_until(lambda pid=process.pid: seen(pid), timeout=30)
    add_host("h1", slots=10)
    for _ in range(12):
        add_job()
    wait_until(lambda: one("SELECT count(*) FROM attempts") == 10, timeout=20)
    wait_until(lambda: one("SELECT count(*) FROM outbox") == 0, timeout=20)
    assert one("SELECT count(DISTINCT devices) FROM attempts") == 10


def test_beat_sends_its_hints_and_remembers(
    store_settings: Settings, processes: Processes, valkey_url: str
):
    del valkey_url
    process = processes.start("beat")
    memory = store_settings.home / "run"

    def remembered() -> bool:
        """Whether the schedule is written: a signal while it is being made ends with an error."""
        try:
            files = [path.read_bytes() for path in memory.glob("beat-schedule*")]
        except FileNotFoundError:  # a damaged one is removed before another is made
            return False
        return any(b"housekeeping" in content for content in files)

    wait_until(remembered, timeout=30)
    assert "beat: Starting" in processes.log("beat")
    assert stop(process) == 0
    for path in memory.glob("beat-schedule*"):
        path.write_bytes(b"not a schedule")
    again = processes.start("beat")
    wait_until(remembered, timeout=30)
    assert processes.log("beat").count("beat: Starting") == 2
    assert stop(again) == 0


def test_what_is_not_in_the_table_is_refused(processes: Processes):
    assert processes.start("celery", "everything").wait(30) == 2
    assert processes.start("nothing").wait(30) == 2
    assert "usage: python -m worker reconciler |" in processes.log("nothing")


def test_nothing_of_the_training_stack_is_loaded():
    check = (
        "import sys, worker.reconciler, worker.celery_app, worker.beat, worker.targets.fake;"
        "heavy = {'torch', 'transformers', 'trl', 'peft', 'datasets', 'mlflow', 'pyarrow'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr
