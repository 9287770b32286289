"""Second looks: hints that nobody takes, holders that hang, rows that do not belong together."""

import pytest

from app.attempts import service
from app.attempts.orphans import adopt_orphans
from app.attempts.service import LeaseLost
from app.db import transaction
from app.jobs.lifecycle import Status
from app.preparations.service import claim_preparation
from tests.worker.test_attempts import HOST, claimed, do, event, ingest, reserved, status
from tests.worker.world import add_job, one, rows, run_sql
from worker import takeover
from worker.loops import Health

pytestmark = pytest.mark.usefixtures("settings")


def look() -> int:
    return takeover.Overdue(Health(), 0.0).look()


def attempts() -> list[tuple[object, ...]]:
    return rows("SELECT outcome, reason FROM attempts ORDER BY number")


def test_b18_a_host_that_takes_no_notice_loses_the_attempt() -> None:
    reserved()
    run_sql("DELETE FROM outbox")
    assert look() == 0
    run_sql("UPDATE attempts SET created_at = now() - interval '301 s'")
    assert look() == 1
    assert attempts() == [("interrupted", "provisioning_failed")]
    assert rows("SELECT status, not_before IS NOT NULL FROM jobs") == [("queued", True)]
    assert rows("SELECT index FROM devices WHERE attempt_id IS NOT NULL") == []


def test_a_hint_that_waits_for_the_broker_is_not_the_hosts_fault() -> None:
    job_id, _ = reserved()
    run_sql("UPDATE attempts SET created_at = now() - interval '1 day'")
    assert one("SELECT count(*) FROM outbox") == 1
    assert look() == 0
    assert status(job_id) == "provisioning"


def test_b15_a_supervisor_that_hangs_with_its_lease_alive() -> None:
    job_id, claim = claimed()
    run_sql("UPDATE attempts SET claimed_at = now() - interval '2 hours'")
    run_sql("UPDATE jobs SET updated_at = now() - interval '2 hours'")
    assert look() == 0  # its inputs may take so long
    run_sql("UPDATE attempts SET claimed_at = now() - interval '1 day', lease_expires_at = now()")
    run_sql("UPDATE jobs SET updated_at = now() - interval '1 day'")
    assert look() == 1
    assert attempts() == [("lost", "stalled")]
    # Nobody else gets the device before its lease has run out: its trainer may still be there.
    assert rows("SELECT index FROM devices WHERE attempt_id IS NOT NULL") == [(0,)]
    assert status(job_id) == "queued"
    with pytest.raises(LeaseLost):
        ingest(claim, event(1, "phase", phase="loading"))


def test_b15_a_run_without_an_event_and_a_model_that_is_never_stored() -> None:
    job_id, claim = claimed()
    ingest(claim, event(1, "phase", phase="training"))
    run_sql("UPDATE attempts SET event_at = now() - interval '1 h', claimed_at = event_at")
    run_sql("UPDATE attempts SET claimed_at = event_at")
    run_sql("UPDATE jobs SET status = 'finalizing', updated_at = now() - interval '1 h'")
    assert look() == 0  # storing may take four
    run_sql("UPDATE jobs SET updated_at = now() - interval '5 h'")
    run_sql("UPDATE attempts SET event_at = now() - interval '5 h', claimed_at = event_at")
    run_sql("UPDATE attempts SET claimed_at = event_at")
    assert look() == 1
    assert status(job_id) == "queued"


def test_a_holder_that_speaks_again_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, claim = claimed()
    monkeypatch.setattr(takeover.overdue, "overdue", lambda _: [claim.attempt_id])
    assert look() == 0
    assert status(job_id) == "provisioning"


def test_nobody_is_judged_just_after_the_database_was_away() -> None:
    reserved()
    run_sql("DELETE FROM outbox")
    run_sql("UPDATE attempts SET created_at = now() - interval '1 day'")
    now = [1000.0]
    health = Health(clock=lambda: now[0])
    looks = takeover.Overdue(health, 60.0, clock=lambda: now[0])
    assert looks.look() == 0  # seen for the first time
    now[0] += 59
    assert looks.look() == 0
    health.broke()
    health.answered()
    now[0] += 59
    assert looks.look() == 0  # holders speak first
    now[0] += 2
    assert looks.look() == 0  # and what was seen before the outage does not count
    now[0] += 60
    assert looks.look() == 1


def test_a_host_that_vanished_before_it_claimed_uses_no_attempt_up() -> None:
    job_id, attempt_id = reserved(max_attempts=1)
    run_sql("UPDATE workers SET seen_at = now() - interval '1 h'")
    assert do(service.expire, attempt_id) is Status.QUEUED
    assert attempts() == [("lost", "machine_lost")]
    assert status(job_id) == "queued"


# -- orphans --


def adopt() -> int:
    return int(do(adopt_orphans))


def torn(job_id: str) -> None:
    """Tear a running job from its attempt, as nothing of ours does."""
    run_sql(
        "UPDATE attempts SET outcome = 'lost', finished_at = now(), released_at = now()"
        " WHERE job_id = :id",
        id=job_id,
    )


@pytest.mark.parametrize(
    ("wish", "after"),
    [(None, "queued"), ("cancel_requested_at", "cancelled"), ("pause_requested_at", "paused")],
)
def test_a_job_without_an_attempt_goes_on(wish: str | None, after: str) -> None:
    job_id, _ = reserved()
    assert adopt() == 0
    torn(job_id)
    if wish:
        run_sql(f"UPDATE jobs SET {wish} = now()")  # noqa: S608 - one of two names
    assert adopt() == 1
    assert status(job_id) == after
    assert adopt() == 0


def test_a_job_without_an_attempt_and_with_none_left_fails() -> None:
    job_id, _ = claimed(max_attempts=1)
    torn(job_id)
    assert adopt() == 1
    assert rows("SELECT status, reason, message FROM jobs") == [
        ("failed", "internal", "the job was found without an attempt")
    ]


def test_an_attempt_that_its_job_does_not_know_of_ends() -> None:
    job_id, claim = claimed()
    run_sql("UPDATE jobs SET status = 'queued' WHERE id = :id", id=job_id)
    assert adopt() == 1
    assert attempts() == [("lost", "internal")]
    with pytest.raises(LeaseLost):
        do(takeover.finish, claim.attempt_id, claim.token, takeover.UNBEGUN)
    run_sql("UPDATE attempts SET lease_expires_at = now() - interval '1 day'")


@pytest.mark.parametrize("preparation", ["done", "failed", None])
def test_b12_a_job_whose_data_nobody_prepares_is_found(preparation: str | None) -> None:
    job_id = add_job(prepared=False)
    assert adopt() == 0
    if preparation is None:
        run_sql("DELETE FROM preparations")
    else:
        run_sql(f"UPDATE preparations SET status = '{preparation}'")  # noqa: S608 - literals
    assert adopt() == 1
    assert rows("SELECT queue, handler, args FROM outbox") == [("prepare", "prepare", [job_id])]
    with transaction() as session:
        assert claim_preparation(session, job_id, HOST)


def test_b12_a_lost_hint_of_a_new_job_is_sent_again() -> None:
    job_id = add_job(prepared=False)
    run_sql("UPDATE preparations SET created_at = now() - interval '21 s'")
    assert do(takeover.hint_again) == 1
    assert rows("SELECT queue, args FROM outbox") == [("prepare", [job_id])]
