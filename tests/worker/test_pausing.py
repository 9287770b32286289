"""Pauses of attempts and preparations: what ends how, and what it uses up."""

import threading
import time

import pytest

from app.attempts import service
from app.attempts.service import Ending, Intent
from app.db import transaction
from app.jobs.lifecycle import FailureReason, Status
from app.jobs.pausing import pause_job, resume_job
from app.preparations import service as preparations
from app.preparations.service import PreparationFailure
from app.settings import Settings
from tests.services import wait_until
from tests.worker.test_attempts import (
    HOST,
    again,
    claimed,
    do,
    end,
    event,
    ingest,
    reserved,
    status,
    stream,
)
from tests.worker.world import PROJECT, add_job, one, rows, run_sql
from worker.lease import LeaseKeeper
from worker.waiting import Stopped, TookTooLong, unless_stopped

pytestmark = pytest.mark.usefixtures("settings")
STOPPED = Ending("interrupted", FailureReason.INTERRUPTED, "stopped for a pause", 75)


def pause(job_id: str) -> None:
    with transaction() as session:
        pause_job(session, PROJECT, job_id)


def resume(job_id: str) -> None:
    with transaction() as session:
        resume_job(session, PROJECT, job_id)


def attempts() -> list[tuple[object, ...]]:
    return rows("SELECT outcome, reason, message FROM attempts ORDER BY number")


# -- attempts --


def test_b1_b17_a_pause_before_the_claim_is_met_by_it_and_frees_the_slot() -> None:
    job_id, attempt_id = reserved()
    pause(job_id)
    assert status(job_id) == "provisioning"
    assert do(service.claim, attempt_id, HOST, "nonce") is None
    assert status(job_id) == "paused"
    assert attempts() == [("interrupted", None, "paused on request")]
    assert rows("SELECT index FROM devices WHERE attempt_id IS NOT NULL") == []


def test_a_paused_attempt_is_handed_back_and_tells_why() -> None:
    job_id, claim = claimed(max_attempts=1)
    ingest(claim, event(1, "phase", phase="training"), event(2, "metrics", step=3, loss=1.0))
    pause(job_id)
    wanted = do(service.renew, claim.attempt_id, claim.token)
    assert wanted == Intent(cancel=False, pause=True, hand_back=False)
    assert do(service.finish, claim.attempt_id, claim.token, STOPPED) is Status.PAUSED
    assert attempts() == [("interrupted", None, "paused on request")]
    assert stream(job_id)[-2:] == [
        ("attempt", {"event": "interrupted", "number": 1, "message": "paused on request"}),
        ("status", {"status": "paused", "phase": None}),
    ]


def test_pauses_use_no_attempt_up_however_many_there_are() -> None:
    job_id, claim = claimed(max_attempts=1)
    for _ in range(15):  # none of them gets to a single step
        pause(job_id)
        assert do(service.finish, claim.attempt_id, claim.token, STOPPED) is Status.PAUSED
        resume(job_id)
        assert status(job_id) == "queued"
        claim = again(job_id, claim)
    assert end(claim) is Status.FAILED  # the one attempt that it has


def test_a_failure_of_its_own_is_a_failure_also_while_a_pause_is_asked_for() -> None:
    job_id, claim = claimed()
    pause(job_id)
    assert end(claim, FailureReason.DIVERGED) is Status.FAILED
    assert rows("SELECT status, reason FROM jobs WHERE id = :id", id=job_id) == [
        ("failed", "diverged")
    ]


def test_what_would_be_tried_again_waits_for_the_resume_and_counts() -> None:
    job_id, claim = claimed(max_attempts=2)
    pause(job_id)
    assert end(claim, FailureReason.MACHINE_LOST) is Status.PAUSED
    assert attempts() == [("failed", "machine_lost", "it is gone")]
    resume(job_id)
    second = again(job_id, claim)
    pause(job_id)
    assert end(second, FailureReason.MACHINE_LOST) is Status.FAILED  # none is left


def test_a_pause_that_is_taken_back_lets_an_attempt_that_was_stopped_go_on() -> None:
    job_id, claim = claimed(max_attempts=1)
    ingest(claim, event(1, "phase", phase="training"), event(2, "metrics", step=3, loss=1.0))
    pause(job_id)
    resume(job_id)
    assert do(service.intent, claim.attempt_id, claim.token).pause is False
    assert do(service.finish, claim.attempt_id, claim.token, STOPPED) is Status.QUEUED
    assert attempts() == [("interrupted", "interrupted", "stopped for a pause")]


def test_a_pause_before_the_model_is_on_its_way_comes_first() -> None:
    job_id, claim = claimed()
    ingest(claim, event(1, "phase", phase="training"))
    pause(job_id)
    assert do(service.finalize, claim.attempt_id, claim.token) is False
    assert do(service.finish, claim.attempt_id, claim.token, STOPPED) is Status.PAUSED


def test_a_cancel_wins_over_a_pause() -> None:
    job_id, claim = claimed()
    pause(job_id)
    run_sql("UPDATE jobs SET cancel_requested_at = now() WHERE id = :id", id=job_id)
    assert do(service.finish, claim.attempt_id, claim.token, STOPPED) is Status.CANCELLED
    assert attempts() == [("cancelled", None, None)]


def test_b11_a_job_that_is_interrupted_for_ever_ends() -> None:
    """Steps that are only repeated are no progress, whoever repeats them."""
    job_id, claim = claimed(max_attempts=2)
    stop = Ending("interrupted", FailureReason.INTERRUPTED, "the host is evicted", 75)
    told: list[Status] = []
    while len(told) < 30:
        ingest(claim, event(1, "phase", phase="training"), event(2, "metrics", step=5, loss=1.0))
        told.append(do(service.finish, claim.attempt_id, claim.token, stop))
        if told[-1] is Status.FAILED:
            break
        claim = again(job_id, claim)
    # Once with progress, ten times forgiven, twice counted.
    assert told == [Status.QUEUED] * 12 + [Status.FAILED]
    assert one("SELECT reason FROM jobs WHERE id = :id", id=job_id) == "interrupted"


# -- preparations --


def preparing() -> tuple[str, str]:
    job_id = add_job(prepared=False)
    token = do(preparations.claim_preparation, job_id, "w")
    assert token
    return job_id, token


def asked_again(job_id: str) -> bool:
    """Whether a resume gets the data prepared after all."""
    run_sql("DELETE FROM outbox")
    resume(job_id)
    assert rows("SELECT queue, args FROM outbox") == [("prepare", [job_id])]
    return bool(do(preparations.claim_preparation, job_id, "w"))


def test_a_preparation_of_a_paused_job_stops_uncounted_and_is_asked_again() -> None:
    job_id, token = preparing()
    pause(job_id)
    assert do(preparations.preparation_intent, job_id, token).cancel is True
    do(preparations.abandon_preparation, job_id, token)
    assert rows("SELECT status, tries FROM preparations") == [("waiting", 0)]
    assert rows("SELECT id FROM outbox") == []
    assert do(preparations.claim_preparation, job_id, "w") is None  # nobody wants it now
    assert asked_again(job_id)


def test_data_that_come_while_the_job_is_paused_are_kept() -> None:
    job_id, token = preparing()
    pause(job_id)
    do(preparations.finish_preparation, job_id, token, "k" * 64, {})
    assert rows("SELECT status, prepared_key FROM jobs") == [("paused", "k" * 64)]
    resume(job_id)
    assert rows("SELECT status, phase FROM jobs") == [("queued", None)]
    assert rows("SELECT id FROM outbox") == []


def test_a_preparation_that_fails_while_the_job_is_paused_is_asked_again() -> None:
    job_id, token = preparing()
    pause(job_id)
    failure = PreparationFailure(FailureReason.INVALID_DATA, "row 7")
    do(preparations.fail_preparation, job_id, token, failure)
    assert status(job_id) == "paused"
    assert asked_again(job_id)


def test_a_pause_that_its_preparation_never_noticed() -> None:
    job_id, token = preparing()
    pause(job_id)
    resume(job_id)
    assert do(preparations.preparation_intent, job_id, token).cancel is False
    do(preparations.finish_preparation, job_id, token, "k" * 64, {})
    assert rows("SELECT status, prepared_key FROM jobs") == [("queued", "k" * 64)]


# -- holders --


def keeper(settings: Settings, wanted: Intent, **more: object) -> LeaseKeeper:
    settings = settings.model_copy(update={"poll": 0.01, "lease": 0.1})
    return LeaseKeeper(settings, lambda _: wanted, lambda _: wanted, None, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "flag"),
    [
        (Intent(cancel=True), "cancelled"),
        (Intent(cancel=False, pause=True), "paused"),
        (Intent(cancel=False, hand_back=True), "handed_back"),
    ],
)
def test_a_holder_hears_what_is_wanted(settings: Settings, wanted: Intent, flag: str) -> None:
    held = keeper(settings, wanted)
    assert held.stopping_for == 0.0
    held.start()
    wait_until(lambda: held.stopping)
    names = ("cancelled", "paused", "handed_back", "lost", "abandoned")
    wait_until(lambda: [n for n in names if getattr(held, n).is_set()] == [flag])
    held.stop()


def test_b16_a_holder_that_hangs_ends_when_its_lease_is_lost(settings: Settings) -> None:
    ended = threading.Event()
    held = keeper(settings, Intent(cancel=False), last_resort=ended.set)
    held.start()
    held.lose()
    assert ended.wait(10)


def test_a_holder_that_stops_in_time_is_left_alone(settings: Settings) -> None:
    ended = threading.Event()
    held = keeper(settings, Intent(cancel=False), last_resort=ended.set)
    held.start()
    held.lose()
    held.stop()
    assert not ended.is_set()


def test_slow_work_ends_in_time_and_at_a_stop(settings: Settings) -> None:
    held = keeper(settings, Intent(cancel=False, pause=True))
    never = threading.Event()
    with pytest.raises(TookTooLong, match=r"0\.05 s"):
        unless_stopped(held, never.wait, 0.05)
    assert unless_stopped(held, lambda: 7, 60.0) == 7
    held.start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        unless_stopped(held, never.wait, 600.0)
    assert time.monotonic() - began < 60
    never.set()
    held.stop()
