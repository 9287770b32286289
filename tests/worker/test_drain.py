"""Draining hosts: nothing new, what is unclaimed goes elsewhere, what runs is asked to move."""

from contextlib import suppress

import pytest

from app.attempts import service
from app.attempts.service import Ending
from app.db import transaction
from app.errors import NotFound
from app.jobs.lifecycle import FailureReason, Status
from app.preparations import service as preparations
from app.targets.service import drain, undrain
from tests.worker.test_attempts import HOST, claimed, do, event, ingest, reserved, status
from tests.worker.world import PROJECT, add_host, add_job, one, rows, run_sql
from worker import takeover
from worker.placement import place

pytestmark = pytest.mark.usefixtures("settings")


def drained(*, now: bool = False) -> None:
    with transaction() as session:
        told = drain(session, PROJECT, HOST, now=now)
    assert (told.draining, told.hand_back) == (True, now)


def back() -> None:
    with transaction() as session:
        told = undrain(session, PROJECT, HOST)
    assert (told.draining, told.hand_back) == (False, False)


def place_once() -> int:
    with transaction() as session:
        return place(session, "r")


def test_a_draining_host_gets_nothing_new_and_jobs_say_why_they_wait() -> None:
    add_host(HOST, slots=1)
    job_id = add_job()
    drained()
    assert place_once() == 0
    told = "SELECT waiting_for FROM jobs WHERE id = :id"
    assert one(told, id=job_id) == "every worker online is being drained"
    # A placement that looked before the drain was committed is refused by the reservation.
    assert do(service.reserve, job_id, HOST, [0]) is None
    back()
    assert place_once() == 1


def test_what_nobody_has_claimed_goes_elsewhere_at_once() -> None:
    job_id, _ = reserved(max_attempts=1)
    drained()
    assert do(takeover.meet_requests) == 1
    assert status(job_id) == "queued"
    assert rows("SELECT outcome, message FROM attempts") == [
        ("interrupted", "handed back before anything began")
    ]
    add_host("host-b", slots=1)
    run_sql("UPDATE jobs SET not_before = NULL")
    assert place_once() == 1
    assert one("SELECT worker_id FROM attempts WHERE finished_at IS NULL") == "host-b"


def test_a_claim_on_a_draining_host_is_met_likewise() -> None:
    job_id, attempt_id = reserved(max_attempts=1)
    drained()
    assert do(service.claim, attempt_id, HOST, "nonce") is None
    assert status(job_id) == "queued"
    assert rows("SELECT index FROM devices WHERE attempt_id IS NOT NULL") == []


def test_what_runs_is_asked_to_move_only_with_now() -> None:
    job_id, claim = claimed(max_attempts=1)
    ingest(claim, event(1, "phase", phase="loading"))
    drained()
    assert do(service.intent, claim.attempt_id, claim.token).hand_back is False
    drained(now=True)
    assert do(service.renew, claim.attempt_id, claim.token).hand_back is True
    drained_ending = Ending("interrupted", FailureReason.INTERRUPTED, "handed back", 75)
    # It had not come to a step yet: that is the operator's doing, and uses no attempt up.
    assert do(service.finish, claim.attempt_id, claim.token, drained_ending) is Status.QUEUED
    assert status(job_id) == "queued"


def test_preparations_pass_a_draining_host_by() -> None:
    add_host(HOST, slots=1)
    run_sql(
        "INSERT INTO workers (id, project_id, kind, hostname, pid)"
        " VALUES ('host-a.prepare.7', 'prj_default', 'prepare', 'a', 7)"
    )
    first, second = add_job(prepared=False), add_job(prepared=False)
    token = do(preparations.claim_preparation, first, HOST)
    drained(now=True)
    assert do(preparations.preparation_intent, first, token).hand_back is True
    do(preparations.abandon_preparation, first, token)
    run_sql("DELETE FROM outbox")
    assert do(preparations.claim_preparation, second, HOST) is None
    assert rows("SELECT id FROM outbox") == []  # nobody else would take it
    place_once()
    waiting = rows("SELECT DISTINCT waiting_for FROM jobs")
    assert waiting == [("no prepare worker online",)]
    run_sql(
        "INSERT INTO workers (id, project_id, kind, hostname, pid)"
        " VALUES ('host-b.prepare.9', 'prj_default', 'prepare', 'b', 9)"
    )
    assert do(preparations.claim_preparation, second, HOST) is None
    assert rows("SELECT queue, args FROM outbox") == [("prepare", [second])]
    run_sql("DELETE FROM outbox")
    back()
    assert sorted(args[0] for (args,) in rows("SELECT args FROM outbox")) == sorted([first, second])
    assert do(preparations.claim_preparation, second, HOST)


def test_only_the_projects_own_host_is_drained() -> None:
    add_host(HOST, slots=1)
    for project, host in (("prj_other", HOST), (PROJECT, "host-z")):
        with pytest.raises(NotFound, match=host), transaction() as session:
            drain(session, project, host, now=True)
    assert one("SELECT draining FROM workers") is False


def test_b18_a_host_where_the_machine_failed_is_avoided_where_another_has_the_room() -> None:
    _, claim = claimed(max_attempts=5)
    lost = Ending("lost", FailureReason.MACHINE_LOST, "it is gone")
    do(service.finish, claim.attempt_id, claim.token, lost)
    do(service.release, claim.attempt_id)
    run_sql("UPDATE jobs SET not_before = NULL")
    add_host("host-b", slots=3)  # more to spare, so without that memory `host-a` would be taken
    assert place_once() == 1
    chosen = "SELECT worker_id FROM attempts WHERE finished_at IS NULL"
    assert one(chosen) == "host-b"
    with suppress(service.LeaseLost):
        do(service.finish, one("SELECT id FROM attempts WHERE number = 2"), None, lost)
    do(service.release, one("SELECT id FROM attempts WHERE number = 2"))
    run_sql("UPDATE jobs SET not_before = NULL")
    run_sql("UPDATE workers SET draining = true WHERE id = 'host-b'")
    assert place_once() == 1
    assert one(chosen) == HOST  # better than none
