"""Attempts that are over: their host ends what is left of them before anybody gets its devices."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from app.attempts import service
from app.db import transaction
from app.settings import Settings
from tests.services import wait_until
from tests.worker.world import add_host, add_job, one, rows, run_sql
from worker.environment import ATTEMPT_MARK
from worker.loops import Health
from worker.placement import place
from worker.proctree import identify, is_alive
from worker.registration import NotReady, Registration, identity, renew
from worker.sweep import Sweeper
from worker.takeover import take_over

HOST = "host-a"


@pytest.fixture(autouse=True)
def _host(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "lease", 0.001)
    monkeypatch.setattr(settings, "worker_id", HOST)
    add_host(HOST, slots=1)


def claimed() -> str:
    """A job whose attempt was claimed on the host; returns the attempt's id."""
    add_job()
    with transaction() as session:
        assert place(session, "r") == 1
    attempt_id = one("SELECT id FROM attempts ORDER BY created_at DESC LIMIT 1")
    with transaction() as session:
        assert service.claim(session, attempt_id, HOST, "nonce")
    return str(attempt_id)


@contextmanager
def left_behind(settings: Settings, attempt_id: str, *, noted: bool = True) -> Iterator[list[int]]:
    """A supervisor that stands still, and a trainer with a helper; yields their pids."""
    logs = settings.home / "logs" / "supervisors"
    work = settings.home / "attempts" / attempt_id
    for folder in (logs, work):
        folder.mkdir(parents=True, exist_ok=True)
    with (logs / f"{attempt_id}.log").open("wb") as log:
        named = "import time; open('/proc/self/comm', 'w').write('polar-lease'); time.sleep(600)"
        holder = subprocess.Popen(["python3", "-c", named], stdout=log)
    wait_until(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "polar-lease\n")
    holder.send_signal(signal.SIGSTOP)
    trainer = subprocess.Popen(
        ["sh", "-c", "sleep 600 & wait"],
        start_new_session=True,
        env=os.environ | ({} if noted else {ATTEMPT_MARK: attempt_id}),
    )
    who = identify(trainer.pid)
    assert who
    if noted:
        (work / "run.json").write_text(json.dumps({"pid": who.pid, "start": who.start}))
    try:
        yield [holder.pid, trainer.pid]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(trainer.pid, signal.SIGKILL)
        holder.kill()
        for process in (holder, trainer):
            process.wait()


def gone(pids: list[int]) -> bool:
    return not any((who := identify(pid)) and is_alive(who) for pid in pids)


def expire() -> None:
    run_sql("UPDATE attempts SET lease_expires_at = now() - interval '1 s'")
    take_over(Health(), 0.0)


@pytest.mark.parametrize("known_by", ["note", "mark"])
def test_b25_a_frozen_holder_and_its_trainer_are_gone_before_the_devices_are(
    settings: Settings, known_by: str
) -> None:
    attempt_id = claimed()
    sweeper = Sweeper(settings, HOST)
    assert sweeper.sweep() == 0  # it is not over
    with left_behind(settings, attempt_id, noted=known_by == "note") as pids:
        expire()
        assert not gone(pids)
        assert one("SELECT attempt_id FROM devices") == attempt_id
        assert sweeper.sweep() == 1
        assert gone(pids)
    assert one("SELECT attempt_id FROM devices") is None
    assert rows("SELECT outcome, reason, cleanup_error FROM attempts") == [
        ("lost", "machine_lost", None)
    ]
    assert sweeper.sweep() == 0


def test_a_holder_has_its_lease_to_clean_up_after_the_end(settings: Settings) -> None:
    attempt_id = claimed()
    with left_behind(settings, attempt_id) as pids:
        run_sql(
            "UPDATE attempts SET outcome = 'failed', finished_at = now(),"
            " lease_expires_at = now() + interval '1 min'"
        )
        assert Sweeper(settings, HOST).sweep() == 0
        assert not gone(pids)


def test_another_hosts_attempts_are_not_ours(settings: Settings) -> None:
    claimed()
    expire()
    assert Sweeper(settings, "host-b").sweep() == 0


def test_b2_devices_are_given_back_once_what_withstood_sigkill_is_gone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt_id = claimed()
    expire()
    with left_behind(settings, attempt_id) as pids:
        # A process in a driver that hangs takes no notice of SIGKILL.
        monkeypatch.setattr("worker.proctree.send", lambda *_: None)
        monkeypatch.setattr("worker.sweep.KILL_WITHIN", 0.1)
        monkeypatch.setattr("worker.sweep.AGAIN_AFTER", 0.0)
        sweeper = Sweeper(settings, HOST)
        assert sweeper.sweep() == 0
        assert one("SELECT attempt_id FROM devices") == attempt_id
        assert f"could not be killed: {pids[1]}" in one("SELECT cleanup_error FROM attempts")
        assert take_over(Health(), 0.0) == 0
    assert sweeper.sweep() == 1
    assert one("SELECT attempt_id FROM devices") is None
    assert rows("SELECT outcome, cleanup_error FROM attempts") == [("lost", None)]


def test_b25_a_host_that_comes_back_sweeps_before_it_offers_devices(settings: Settings) -> None:
    attempt_id = claimed()
    run_sql("UPDATE workers SET seen_at = now() - interval '1 h'")
    with left_behind(settings, attempt_id) as pids:
        expire()
        assert one("SELECT attempt_id FROM devices") is None  # nobody is sent to a lost host
        sweeper, seen = Sweeper(settings, HOST), []

        def sweep(session: Session) -> None:
            seen.append(one("SELECT count(*) FROM workers WHERE seen_at > now() - interval '1 m'"))
            sweeper.before_offering(session)
            seen.append(gone(pids))

        with Registration(settings, "host", every=0.05, before_offering=sweep):
            wait_until(lambda: one("SELECT seen_at > now() - interval '1 m' FROM workers"))
            assert seen == [0, True]
            # Cut off once more, and back: it looks again.
            run_sql("UPDATE workers SET seen_at = now() - interval '61 s'")
            wait_until(lambda: len(seen) == 4)
    with transaction() as session:
        assert not renew(session, identity(settings, "host"), 0.0)


def test_a_host_that_cannot_be_cleaned_offers_nothing(settings: Settings) -> None:
    run_sql("UPDATE workers SET seen_at = now() - interval '1 h'")
    tries: list[bool] = []

    def refuse(session: Session) -> None:
        assert session.in_transaction()
        tries.append(True)
        if len(tries) < 3:
            raise NotReady("a process hangs")

    with Registration(settings, "host", every=0.05, before_offering=refuse):
        wait_until(lambda: one("SELECT seen_at > now() - interval '1 m' FROM workers"))
    assert len(tries) == 3
