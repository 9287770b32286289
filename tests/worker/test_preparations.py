"""Preparations: leases, retries and endings on a real Postgres."""

from collections.abc import Callable
from typing import Any

import pytest

from app.attempts.service import LeaseLost
from app.db import transaction
from app.ids import new_id
from app.jobs.lifecycle import FailureReason
from app.plans import leases
from app.preparations import service
from app.preparations.service import PreparationFailure
from tests.worker.world import add_host, add_job, one, rows, run_sql
from worker import takeover

pytestmark = pytest.mark.usefixtures("settings")
BAD_DATA = PreparationFailure(FailureReason.INVALID_DATA, "data.train[0] line 7 is not JSON")
AWAY = PreparationFailure(FailureReason.DATA_UNAVAILABLE, "the hub does not answer")


def do(function: Callable[..., Any], *arguments: Any) -> Any:
    with transaction() as session:
        return function(session, *arguments)


def claimed() -> tuple[str, str]:
    job_id = add_job(prepared=False)
    token = do(service.claim_preparation, job_id, "w")
    assert token
    return job_id, token


def test_b10_a_duplicate_hint_claims_nothing() -> None:
    job_id, _ = claimed()
    assert do(service.claim_preparation, job_id, "w") is None


def test_a_host_prepares_so_many_at_once_and_calls_for_the_next_when_one_ends() -> None:
    """`prepare_slots` is 4; the hint of a job of just now is on its way still."""
    held = [claimed() for _ in range(4)]
    waiting = add_job(prepared=False)
    assert do(service.claim_preparation, waiting, "w") is None
    run_sql("DELETE FROM outbox")
    run_sql("UPDATE preparations SET created_at = now() - interval '1 minute', hinted_at = NULL")
    job_id, token = held[0]
    do(service.finish_preparation, job_id, token, "k" * 64, {})
    assert rows("SELECT handler, args FROM outbox WHERE queue = 'prepare'") == [
        ("prepare", [waiting])
    ]
    assert do(service.claim_preparation, waiting, "w")
    other = add_job(prepared=False)
    assert do(service.claim_preparation, other, "w") is None
    assert do(service.claim_preparation, other, "another")  # which has room
    run_sql("UPDATE preparations SET lease_expires_at = now() - interval '1 s'")
    third = add_job(prepared=False)
    assert do(service.claim_preparation, third, "w")  # holders that are gone take no room


def test_a_hint_that_met_a_full_host_is_sent_again_at_once_where_another_has_room() -> None:
    """Not after `hint_after`, which is 20 s and doubles: the job was submitted just now."""
    run_sql(
        "INSERT INTO workers (id, project_id, kind, hostname, pid) VALUES"
        " ('w.prepare.1', 'prj_default', 'prepare', 'w', 1),"
        " ('v.prepare.1', 'prj_default', 'prepare', 'v', 1)"
    )
    for _ in range(4):
        claimed()
    waiting = add_job(prepared=False)

    def hinted() -> list[Any]:
        assert do(service.claim_preparation, waiting, "w") is None
        run_sql("DELETE FROM outbox")
        do(takeover.hint_again)
        return [args for (args,) in rows("SELECT args FROM outbox WHERE queue = 'prepare'")]

    assert hinted() == [[waiting]]
    assert hinted() == [[waiting]]  # the full host was quicker once more
    add_host("v")
    run_sql("UPDATE workers SET draining = true WHERE id = 'v'")
    run_sql("UPDATE preparations SET hinted_at = now() WHERE job_id = :id", id=waiting)
    assert hinted() == []  # nobody has room: who ends first calls


def add_plan() -> str:
    plan_id = new_id("plan")
    run_sql(
        "INSERT INTO plans (id, project_id, identity, spec, resolved, warnings, found, expires_at)"
        " VALUES (:id, 'prj_default', :id, '{}', '{}', '[]', '{}', now() + interval '1 h')",
        id=plan_id,
    )
    return plan_id


def test_a_plan_s_hint_that_met_a_full_or_drained_host_goes_to_another_at_once() -> None:
    run_sql(
        "INSERT INTO workers (id, project_id, kind, hostname, pid) VALUES"
        " ('w.prepare.1', 'prj_default', 'prepare', 'w', 1),"
        " ('v.prepare.1', 'prj_default', 'prepare', 'v', 1)"
    )
    plan_id = add_plan()
    for _ in range(4):
        claimed()
    assert do(leases.claim_plan, plan_id, "w") is None
    run_sql("DELETE FROM outbox")
    do(takeover.hint_again)
    hints = "SELECT args FROM outbox WHERE handler = 'plan'"
    assert rows(hints) == [([plan_id],)]
    add_host("w")
    run_sql("UPDATE workers SET draining = true WHERE id = 'w'")
    run_sql("UPDATE preparations SET lease_expires_at = now() - interval '1 s'")
    run_sql("DELETE FROM outbox")
    assert do(leases.claim_plan, plan_id, "w") is None
    assert rows(hints) == [([plan_id],)]
    assert do(leases.claim_plan, plan_id, "v")
    run_sql("DELETE FROM outbox")
    assert do(leases.claim_plan, plan_id, "w") is None
    assert rows(hints) == []  # it is being made


def test_room_goes_to_the_next_that_may_begin_and_not_to_a_job_that_waits_for_its_plan() -> None:
    job_id, token = claimed()
    pinned, plan_id = add_job(prepared=False), add_plan()
    run_sql(
        "UPDATE jobs SET spec = jsonb_set(spec, '{plan_id}', to_jsonb(CAST(:plan AS text)))"
        " WHERE id = :id",
        plan=plan_id,
        id=pinned,
    )
    following = add_job(prepared=False)
    run_sql("DELETE FROM outbox")
    run_sql("UPDATE preparations SET created_at = created_at - interval '1 minute'")
    do(service.finish_preparation, job_id, token, "k" * 64, {})
    assert rows("SELECT args FROM outbox WHERE handler = 'prepare'") == [([following],)]


def test_finished_data_makes_the_job_placeable_and_tells_its_warnings() -> None:
    job_id, token = claimed()
    report = {"rows_in": 3, "warnings": [{"code": "cut", "message": "2 rows were cut"}]}
    do(service.finish_preparation, job_id, token, "k" * 64, report)
    found = rows("SELECT status, phase, prepared_key FROM jobs WHERE id = :id", id=job_id)
    assert found == [("queued", None, "k" * 64)]
    assert rows("SELECT type, data FROM job_events ORDER BY seq")[-2:] == [
        ("warning", {"code": "cut", "message": "2 rows were cut"}),
        ("status", {"status": "queued", "phase": None}),
    ]
    with pytest.raises(LeaseLost):
        do(service.finish_preparation, job_id, token, "k" * 64, report)


def test_invalid_data_fails_the_job_before_a_device_is_taken() -> None:
    job_id, token = claimed()
    assert do(service.fail_preparation, job_id, token, BAD_DATA) is False
    found = rows("SELECT status, reason, message FROM jobs WHERE id = :id", id=job_id)
    assert found == [("failed", "invalid_data", "data.train[0] line 7 is not JSON")]
    assert rows("SELECT id FROM attempts") == []


def test_what_is_retried_is_retried_three_times() -> None:
    job_id, token = claimed()
    for _ in range(service.MAX_TRIES - 1):
        assert do(service.fail_preparation, job_id, token, AWAY) is True
        assert one("SELECT status FROM jobs WHERE id = :id", id=job_id) == "queued"
        assert one("SELECT not_before IS NOT NULL FROM jobs WHERE id = :id", id=job_id)
        run_sql("UPDATE jobs SET not_before = now() + interval '1 h'")  # time to look
        assert do(service.claim_preparation, job_id, "w") is None  # not yet
        run_sql("UPDATE jobs SET not_before = NULL")
        token = do(service.claim_preparation, job_id, "w")
    assert do(service.fail_preparation, job_id, token, AWAY) is False
    assert one("SELECT reason FROM jobs WHERE id = :id", id=job_id) == "data_unavailable"


def test_a_cancelled_job_stops_its_preparation() -> None:
    job_id, token = claimed()
    assert do(service.renew_preparation, job_id, token).cancel is False
    run_sql("UPDATE jobs SET status = 'cancelled', finished_at = now() WHERE id = :id", id=job_id)
    assert do(service.renew_preparation, job_id, token).cancel is True
    assert do(service.preparation_intent, job_id, token).cancel is True
    do(service.abandon_preparation, job_id, token)
    assert one("SELECT status FROM preparations") == "failed"
    assert one("SELECT status FROM jobs") == "cancelled"


def test_an_abandoned_preparation_is_hinted_again_and_not_counted() -> None:
    job_id, token = claimed()
    do(service.abandon_preparation, job_id, token)
    assert rows("SELECT status, tries FROM preparations") == [("waiting", 0)]
    assert rows("SELECT queue, handler, args FROM outbox") == [("prepare", "prepare", [job_id])]
    assert do(service.claim_preparation, job_id, "w") is not None


def test_a_lost_lease_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.settings import get_settings

    job_id, token = claimed()
    monkeypatch.setenv("POLAR_LEASE", "0.01")
    get_settings.cache_clear()
    run_sql("UPDATE preparations SET lease_expires_at = now() - interval '1 second'")
    second = do(service.claim_preparation, job_id, "v")
    assert second not in (None, token)
    with pytest.raises(LeaseLost):
        do(service.renew_preparation, job_id, token)
