"""Requests and holders at the same moment, in real transactions: one of the two comes first."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from app.attempts import service
from app.attempts.service import Ending, LeaseLost
from app.db import transaction
from app.errors import Conflict
from app.jobs.lifecycle import FailureReason
from app.jobs.pausing import pause_job, resume_job
from app.jobs.service import cancel_job
from app.targets.service import drain
from tests.worker.test_attempts import (
    HOST,
    claimed,
    do,
    event,
    finalizing,
    ingest,
    model,
    reserved,
    status,
    stream,
)
from tests.worker.world import PROJECT, add_host, add_job, one, rows, run_sql
from worker import takeover
from worker.placement import place

pytestmark = pytest.mark.usefixtures("settings")
ROUNDS = 8
STOPPED = Ending("interrupted", FailureReason.INTERRUPTED, "stopped", 75)


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Do all of it at the same moment; returns each one's result, or what it raised."""
    barrier, results = threading.Barrier(len(works)), [None] * len(works)

    def run(place: int, work: Callable[[], Any]) -> None:
        barrier.wait(10)
        try:
            results[place] = work()
        except (Conflict, LeaseLost) as error:
            results[place] = type(error)  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "no two of them wait for each other"
    return results


def ask(what: Callable[..., Any], job_id: str) -> Callable[[], Any]:
    def send() -> str:
        with transaction() as session:
            return str(what(session, PROJECT, job_id).status)

    return send


def told(job_id: str) -> list[str]:
    """The statuses that the job has gone through."""
    wishes = {"pause_requested", "cancel_requested"}
    return [d["status"] for kind, d in stream(job_id) if kind == "status" and not wishes & set(d)]


def free() -> int:
    return int(one("SELECT count(*) FROM devices WHERE attempt_id IS NULL"))


def test_a_pause_and_the_end_of_training() -> None:
    for _ in range(ROUNDS):
        job_id, claim = claimed()
        ingest(claim, event(1, "phase", phase="training"))
        finalize = (service.finalize, claim.attempt_id, claim.token)
        paused, final = at_once(ask(pause_job, job_id), lambda finalize=finalize: do(*finalize))
        assert (paused, final) in {("running", False), (Conflict, True)}
        if final:
            assert do(service.commit_model, claim.attempt_id, claim.token, model(claim))
            assert status(job_id) == "succeeded"
        else:
            do(service.finish, claim.attempt_id, claim.token, STOPPED)
            assert status(job_id) == "paused"
        do(service.release, claim.attempt_id)
        assert len(told(job_id)) == len(set(told(job_id)))


def test_b13_a_cancel_and_the_publication() -> None:
    for _ in range(ROUNDS):
        job_id, claim = claimed()
        finalizing(claim)
        commit = (service.commit_model, claim.attempt_id, claim.token, model(claim))
        cancelled, made = at_once(ask(cancel_job, job_id), lambda commit=commit: do(*commit))
        assert (cancelled, made) in {("finalizing", False), (Conflict, True)}
        published = rows("SELECT 1 FROM model_versions WHERE job_id = :id", id=job_id)
        assert bool(published) is made
        if not made:
            do(service.finish, claim.attempt_id, claim.token, STOPPED)
        do(service.release, claim.attempt_id)
        assert status(job_id) == ("succeeded" if made else "cancelled")


@pytest.mark.parametrize("wish", [pause_job, cancel_job])
def test_b17_a_wish_and_the_claim_and_the_reconciler(wish: Callable[..., Any]) -> None:
    after = "paused" if wish is pause_job else "cancelled"
    for _ in range(ROUNDS):
        job_id, attempt_id = reserved()
        claim, _, _ = at_once(
            lambda attempt_id=attempt_id: do(service.claim, attempt_id, HOST, "nonce"),
            ask(wish, job_id),
            lambda: do(takeover.meet_requests),
        )
        if claim is not None:  # it was first: its holder is told
            heard = do(service.renew, claim.attempt_id, claim.token)
            assert heard.pause or heard.cancel
            do(service.finish, claim.attempt_id, claim.token, STOPPED)
            do(service.release, claim.attempt_id)
        do(takeover.meet_requests)
        assert status(job_id) == after
        assert told(job_id) == ["provisioning", after]
        assert free() == 2


def test_a_pause_a_resume_and_the_end_of_the_attempt() -> None:
    for _ in range(ROUNDS):
        job_id, claim = claimed()
        ingest(claim, event(1, "phase", phase="training"), event(2, "metrics", step=2, loss=1.0))
        ask(pause_job, job_id)()
        finish = (service.finish, claim.attempt_id, claim.token, STOPPED)
        at_once(ask(resume_job, job_id), lambda finish=finish: do(*finish))
        do(service.release, claim.attempt_id)
        # Taken back in time, or paused and resumed: it waits for a host either way.
        assert told(job_id)[2:] in (["queued"], ["paused", "queued"])
        assert one("SELECT pause_requested_at FROM jobs WHERE id = :id", id=job_id) is None
        ask(cancel_job, job_id)()


def test_two_placements_a_pause_and_a_drain() -> None:
    add_host(HOST, slots=1)
    for _ in range(ROUNDS):
        job_id = add_job()
        works = [ask(pause_job, job_id), *[lambda: do(place, "r")] * 2]
        at_once(*works, lambda: do_drain(now=False))
        do(takeover.meet_requests)
        assert status(job_id) == "paused"
        assert rows("SELECT 1 FROM attempts WHERE finished_at IS NULL") == []
        assert free() == 1
        run_sql("UPDATE workers SET draining = false")


def do_drain(*, now: bool) -> None:
    with transaction() as session:
        drain(session, PROJECT, HOST, now=now)


def test_b38_a_takeover_and_its_holders_own_end() -> None:
    for _ in range(ROUNDS):
        job_id, claim = claimed(max_attempts=1)
        run_sql("UPDATE attempts SET lease_expires_at = to_timestamp(0)")
        finish = (service.finish, claim.attempt_id, claim.token, STOPPED)
        lost, said = at_once(
            lambda claim=claim: do(service.expire, claim.attempt_id), lambda f=finish: do(*f)
        )
        assert (lost is None) is (said is not LeaseLost), "one of them ended it"
        do(service.release, claim.attempt_id)
        assert told(job_id)[1:] in (["failed"], ["queued"])
        if status(job_id) == "queued":
            ask(cancel_job, job_id)()
