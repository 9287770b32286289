"""Takeovers: lost hints, expired leases, cancels that met nobody, devices left behind."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.attempts import unreleased
from app.attempts.service import Ending, claim, expire, finish
from app.db import get_engine, transaction
from app.jobs.lifecycle import FailureReason
from app.preparations.service import claim_preparation
from app.settings import Settings
from tests.services import wait_until
from tests.worker.world import add_host, add_job, one, rows, run_sql
from worker import takeover
from worker.durably import is_away
from worker.loops import Health
from worker.placement import place

LEASE = 60.0


@pytest.fixture(autouse=True)
def _short(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    get_engine()  # of the usual lease: a busy machine stands still for a second in a transaction
    monkeypatch.setattr(settings, "lease", 0.001)


def reserved() -> tuple[str, str]:
    """A job that was just given the slot of a host; returns (job, attempt)."""
    add_host("h1", slots=1)
    job = add_job()
    with transaction() as session:
        assert place(session, "r") == 1
    run_sql("DELETE FROM outbox")
    return job, one("SELECT id FROM attempts")


def claimed() -> tuple[str, str, str]:
    job, attempt = reserved()
    with transaction() as session:
        held = claim(session, attempt, "h1", "nonce")
    assert held is not None
    return job, attempt, held.token


def cut_off() -> None:
    """Nobody has heard of the host for longer than `worker_timeout`."""
    run_sql("UPDATE workers SET seen_at = now() - interval '1 h'")


def status(job: str) -> str:
    return one("SELECT status FROM jobs WHERE id = :id", id=job)


def hint_again() -> int:
    with transaction() as session:
        return takeover.hint_again(session)


def meet_requests() -> int:
    with transaction() as session:
        return takeover.meet_requests(session)


def test_a_hint_that_nobody_took_is_sent_again_ever_more_rarely():
    _, attempt = reserved()
    assert hint_again() == 0
    run_sql("UPDATE attempts SET hinted_at = now() - interval '21 s', created_at = hinted_at")
    run_sql("UPDATE attempts SET created_at = hinted_at")
    assert hint_again() == 1
    assert rows("SELECT queue, handler, args FROM outbox") == [("host.h1", "run", [attempt])]
    assert hint_again() == 0
    # Hinted 100 s after its creation: the next one comes 100 s later, not 20.
    run_sql("UPDATE attempts SET created_at = now() - interval '199 s'")
    run_sql("UPDATE attempts SET hinted_at = now() - interval '99 s'")
    assert hint_again() == 0
    run_sql("UPDATE attempts SET created_at = now() - interval '1 day'")
    run_sql("UPDATE attempts SET hinted_at = now() - interval '301 s'")
    assert hint_again() == 1


def test_a_claimed_attempt_gets_no_hint():
    claimed()
    run_sql("UPDATE attempts SET hinted_at = now() - interval '1 day', created_at = hinted_at")
    assert hint_again() == 0


def test_a_preparation_that_waits_or_lost_its_worker_is_hinted_again():
    job = add_job(prepared=False)
    assert hint_again() == 0
    run_sql("UPDATE preparations SET created_at = now() - interval '21 s'")
    assert hint_again() == 1
    with transaction() as session:
        assert claim_preparation(session, job, "p1")
    run_sql("UPDATE preparations SET hinted_at = created_at, lease_expires_at = now() + '1 h'")
    assert hint_again() == 0
    run_sql("UPDATE preparations SET lease_expires_at = now() - interval '1 s'")
    assert hint_again() == 1
    assert rows("SELECT queue, handler, args FROM outbox") == [("prepare", "prepare", [job])] * 2


def test_a_preparation_of_a_job_that_backs_off_waits():
    add_job(prepared=False)
    run_sql("UPDATE preparations SET created_at = now() - interval '1 h'")
    run_sql("UPDATE jobs SET not_before = now() + interval '1 h'")
    assert hint_again() == 0


def test_a_cancel_before_the_claim_ends_the_job_and_frees_the_slot():
    job, attempt = reserved()
    assert meet_requests() == 0
    run_sql("UPDATE jobs SET cancel_requested_at = now()")
    assert meet_requests() == 1
    assert status(job) == "cancelled"
    assert one("SELECT outcome FROM attempts") == "cancelled"
    assert one("SELECT count(*) FROM devices WHERE attempt_id IS NULL") == 1
    with transaction() as session:
        assert claim(session, attempt, "h1", "nonce") is None


def test_b1_a_cancel_that_a_claim_met_first_is_no_error(monkeypatch):
    job, attempt = reserved()
    run_sql("UPDATE jobs SET cancel_requested_at = now()")
    # The claim comes between the reconciler's look and its lock.
    seen = takeover.text("SELECT CAST(:id AS text) AS id").bindparams(id=attempt)
    monkeypatch.setattr(takeover, "_TOMBSTONES", seen)
    with transaction() as session:
        assert claim(session, attempt, "h1", "nonce") is None
    assert status(job) == "cancelled"
    meet_requests()
    assert status(job) == "cancelled"


def test_a_cancel_of_a_claimed_attempt_is_its_holders_business():
    job, _, _ = claimed()
    run_sql("UPDATE jobs SET cancel_requested_at = now()")
    assert meet_requests() == 0
    assert status(job) == "provisioning"


def test_a_cancel_that_met_an_automatic_retry_is_not_lost():
    job = add_job()
    run_sql("UPDATE jobs SET cancel_requested_at = now(), not_before = now() + interval '1 h'")
    assert meet_requests() == 1
    assert status(job) == "cancelled"


def test_an_expired_lease_ends_the_attempt_and_the_job_waits_again():
    job, _, _ = claimed()
    cut_off()
    run_sql("UPDATE attempts SET lease_expires_at = now() - interval '1 s'")
    assert takeover.take_over(Health(), 0.0) == 1
    assert status(job) == "queued"
    assert rows("SELECT outcome, reason, released_at IS NULL FROM attempts") == [
        ("lost", "machine_lost", False)
    ]
    assert one("SELECT attempt_id FROM devices") is None
    assert one("SELECT not_before > now() - interval '1 min' FROM jobs")


def test_b25_a_host_that_is_up_keeps_the_devices_until_it_has_looked_itself(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Holder and trainer may only stand still there: nobody else can tell."""
    job, attempt, _ = claimed()
    run_sql("UPDATE attempts SET lease_expires_at = now() - interval '1 s'")
    assert takeover.take_over(Health(), 0.0) == 1
    assert status(job) == "queued"
    assert takeover.take_over(Health(), 0.0) == 0
    assert one("SELECT attempt_id FROM devices") == attempt
    run_sql("UPDATE jobs SET not_before = NULL")
    with transaction() as session:
        assert place(session, "r") == 0  # neither this job nor another one gets it
    assert rows("SELECT released_at, cleanup_error FROM attempts") == [(None, None)]
    # A host that does not react is named, once; its devices stay taken.
    monkeypatch.setattr(unreleased, "RELEASE_WITHIN", 0.0)
    with caplog.at_level("WARNING"):
        assert [takeover.take_over(Health(), 0.0) for _ in range(3)] == [0, 0, 0]
    assert rows("SELECT released_at, cleanup_error FROM attempts") == [(None, unreleased.UNHEARD)]
    [told] = rows("SELECT data FROM job_events WHERE type = 'warning'")
    assert told[0]["code"] == "devices_not_released"
    assert "the host h1 keeps its devices" in told[0]["message"]
    assert len([each for each in caplog.messages if "keeps its devices" in each]) == 1
    # Once it is gone nobody is sent there, and it sweeps before it offers them again.
    cut_off()
    assert takeover.take_over(Health(), 0.0) == 1
    assert one("SELECT attempt_id FROM devices") is None
    assert one("SELECT cleanup_error FROM attempts") is None


def test_b25_a_takeover_waits_for_a_host_that_is_just_coming_back():
    """Such a host holds its row while it sweeps: what it could not see yet it will see later."""
    _, attempt, _ = claimed()
    cut_off()
    run_sql("UPDATE attempts SET lease_expires_at = now() - interval '1 s'")
    with ThreadPoolExecutor(1) as pool:
        with transaction() as host:
            host.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            host.execute(text("SELECT 1 FROM workers WHERE id = 'h1' FOR NO KEY UPDATE"))
            taken = pool.submit(takeover.take_over, Health(), 0.0)
            wait_until(lambda: one(_WAITING))
            host.execute(text("UPDATE workers SET seen_at = now()"))
        assert taken.result(30) == 1
    assert one("SELECT attempt_id FROM devices") == attempt


_WAITING = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND wait_event_type = 'Lock'
"""


def test_a_lease_that_was_renewed_meanwhile_is_left_alone():
    job, _, _ = claimed()
    run_sql("UPDATE attempts SET lease_expires_at = now() + interval '1 h'")
    assert takeover.take_over(Health(), 0.0) == 0
    assert status(job) == "provisioning"


def test_takeovers_wait_one_lease_after_the_database_is_back():
    claimed()
    run_sql("UPDATE attempts SET lease_expires_at = now() - interval '1 s'")
    now = [1000.0]
    health = Health(clock=lambda: now[0])
    health.broke()
    assert takeover.take_over(health, LEASE) == 0
    now[0] += 100
    health.answered()
    now[0] += LEASE - 1
    assert takeover.take_over(health, LEASE) == 0
    now[0] += 2
    assert takeover.take_over(health, LEASE) == 1


def test_b35_a_young_database_server_takes_nothing_over(settings, monkeypatch):
    claimed()
    run_sql("UPDATE attempts SET lease_expires_at = now() - interval '1 s'")
    monkeypatch.setattr(settings, "lease", 10.0**6)
    assert takeover.take_over(Health(), 10.0**6) == 0


def test_what_a_holder_left_after_the_end_is_given_back_but_not_what_failed_to_clean_up():
    job, attempt, token = claimed()
    with transaction() as session:
        finish(session, attempt, token, Ending("failed", FailureReason.TRAINER_ERROR, "broke"))
    assert status(job) == "failed"
    run_sql("UPDATE attempts SET lease_expires_at = now() + interval '1 h'")
    assert takeover.take_over(Health(), 0.0) == 0
    run_sql("UPDATE attempts SET lease_expires_at = now() - interval '1 s', cleanup_error = 'busy'")
    assert takeover.take_over(Health(), 0.0) == 0
    run_sql("UPDATE attempts SET cleanup_error = NULL")
    cut_off()
    assert takeover.take_over(Health(), 0.0) == 1
    assert one("SELECT attempt_id FROM devices") is None
    assert rows("SELECT outcome, reason FROM attempts") == [("failed", "trainer_error")]


def test_a_holder_that_stands_still_in_a_transaction_keeps_nobody_from_its_rows():
    """A frozen process answers nothing and closes nothing: the database itself ends its wait."""
    job, attempt, _ = claimed()
    get_engine().dispose()
    get_engine.cache_clear()  # the next one has the short lease, and half of it as its patience
    with Session(get_engine()) as frozen:
        frozen.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR UPDATE"), {"id": job})
        with transaction() as session:  # waits for the row, as a takeover would
            assert expire(session, attempt) is not None
        with pytest.raises(DBAPIError) as told:
            frozen.execute(text("SELECT 1"))
        assert is_away(told.value)  # it goes on as after an outage
        frozen.invalidate()
    assert status(job) == "queued"
