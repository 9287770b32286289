"""Attempts: leases, ingest, endings and commits on a real Postgres."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from app.attempts import service
from app.attempts.endings import FORGIVEN
from app.attempts.service import Claim, Ending, EventGap, LeaseLost, Publication, StoredFile
from app.db import transaction
from app.jobs.lifecycle import FailureReason, Status
from app.settings import Settings
from tests.worker.world import add_host, add_job, one, rows, run_sql
from trainer_core.events import RunEvent

pytestmark = pytest.mark.usefixtures("settings")
HOST = "host-a"


def do(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a service function in a transaction of its own."""
    with transaction() as session:
        return function(session, *arguments)


def reserved(**job: Any) -> tuple[str, str]:
    """A job with a reserved attempt on HOST."""
    if not one("SELECT id FROM workers WHERE id = :id", id=HOST):
        add_host(HOST, slots=2)
    job_id = add_job(**job)
    free = one("SELECT min(index) FROM devices WHERE attempt_id IS NULL")
    attempt_id = do(service.reserve, job_id, HOST, [free])
    assert attempt_id
    return job_id, attempt_id


def claimed(**job: Any) -> tuple[str, Claim]:
    job_id, attempt_id = reserved(**job)
    return job_id, do(service.claim, attempt_id, HOST, "nonce")


def event(n: int, kind: Any, /, **data: Any) -> RunEvent:
    return RunEvent(n=n, time=datetime.now(UTC), type=kind, data=data)


def ingest(claim: Claim, *events: RunEvent) -> int:
    return do(service.ingest, claim.attempt_id, claim.token, events)


def again(job_id: str, earlier: Claim) -> Claim:
    """The job's next attempt, its back-off being over."""
    do(service.release, earlier.attempt_id)
    run_sql("UPDATE jobs SET not_before = NULL WHERE id = :id", id=job_id)
    claim: Claim = do(service.claim, do(service.reserve, job_id, HOST, [0]), HOST, "n")
    return claim


def stream(job_id: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (kind, data)
        for kind, data in rows(
            "SELECT type, data FROM job_events WHERE job_id = :id ORDER BY seq", id=job_id
        )
    ]


def status(job_id: str) -> str:
    return str(one("SELECT status FROM jobs WHERE id = :id", id=job_id))


def end(claim: Claim, reason: FailureReason = FailureReason.KILLED) -> Status:
    ending = Ending("failed", reason, "it is gone", -9)
    result: Status = do(service.finish, claim.attempt_id, claim.token, ending)
    return result


# -- reserve and claim --


def test_reserving_takes_the_devices_and_hints_the_host() -> None:
    job_id, attempt_id = reserved()
    assert status(job_id) == "provisioning"
    assert rows("SELECT index FROM devices WHERE attempt_id = :id", id=attempt_id) == [(0,)]
    assert rows("SELECT queue, handler, args FROM outbox") == [
        (f"host.{HOST}", "run", [attempt_id])
    ]
    assert (
        "attempt",
        {"event": "provisioned", "number": 1, "worker_id": HOST, "devices": [0]},
    ) in (stream(job_id))


def test_nothing_is_written_when_a_device_is_taken() -> None:
    reserved()
    other = add_job()
    assert do(service.reserve, other, HOST, [0, 1]) is None
    assert status(other) == "queued"
    assert rows("SELECT index FROM devices WHERE attempt_id IS NULL") == [(1,)]


@pytest.mark.parametrize("column", ["cancel_requested_at", "not_before"])
def test_a_job_that_must_not_start_is_not_reserved(column: str) -> None:
    add_host(HOST, slots=1)
    job_id = add_job()
    run_sql(f"UPDATE jobs SET {column} = now() + interval '1 hour' WHERE id = :id", id=job_id)  # noqa: S608
    assert do(service.reserve, job_id, HOST, [0]) is None
    assert do(service.reserve, add_job(prepared=False), HOST, [0]) is None


def test_b10_a_second_claim_is_a_no_op() -> None:
    _, attempt_id = reserved()
    first = do(service.claim, attempt_id, HOST, "one")
    assert first.devices == [0]
    assert do(service.claim, attempt_id, HOST, "two") is None
    # Only the claimer itself may ask again, when the answer of its commit was lost.
    assert do(service.claim, attempt_id, HOST, "one") is not None


def test_another_host_cannot_claim() -> None:
    _, attempt_id = reserved()
    assert do(service.claim, attempt_id, "host-b", "nonce") is None


def test_b1_a_cancel_before_the_claim_is_met_by_it() -> None:
    job_id, attempt_id = reserved()
    run_sql("UPDATE jobs SET cancel_requested_at = now() WHERE id = :id", id=job_id)
    assert do(service.claim, attempt_id, HOST, "nonce") is None
    assert status(job_id) == "cancelled"
    assert one("SELECT outcome FROM attempts WHERE id = :id", id=attempt_id) == "cancelled"
    assert rows("SELECT index FROM devices WHERE attempt_id IS NOT NULL") == []


# -- the lease --


def test_b35_only_the_database_decides_leases() -> None:
    _, claim = claimed()
    assert do(service.renew, claim.attempt_id, claim.token).cancel is False
    with pytest.raises(LeaseLost):
        do(service.renew, claim.attempt_id, "another token")
    left = one(
        "SELECT extract(epoch FROM lease_expires_at - now()) FROM attempts WHERE id = :id",
        id=claim.attempt_id,
    )
    assert 0 < left <= 60


def test_a_renewal_tells_of_a_cancel() -> None:
    job_id, claim = claimed()
    run_sql("UPDATE jobs SET cancel_requested_at = now() WHERE id = :id", id=job_id)
    assert do(service.renew, claim.attempt_id, claim.token).cancel is True
    assert do(service.intent, claim.attempt_id, claim.token).cancel is True


def test_an_expired_lease_may_be_renewed_until_someone_takes_over() -> None:
    _, claim = claimed()
    _expire(claim)
    assert do(service.renew, claim.attempt_id, claim.token).cancel is False
    assert do(service.expire, claim.attempt_id) is None  # it lives after all


def test_b38_who_was_taken_over_may_not_write(monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, claim = claimed()
    assert ingest(claim, event(1, "phase", phase="loading")) == 1
    _expire(claim)
    _long_up(monkeypatch)
    assert do(service.expired) == [claim.attempt_id]
    assert do(service.expire, claim.attempt_id) is Status.QUEUED
    assert one("SELECT reason FROM attempts WHERE id = :id", id=claim.attempt_id) == "machine_lost"
    before = stream(job_id)
    refused: list[Callable[[], Any]] = [
        lambda: ingest(claim, event(2, "log", level="info", message="too late")),
        lambda: do(service.append_log, claim.attempt_id, claim.token, ["x"], 10),
        lambda: do(
            service.commit_checkpoint,
            claim.attempt_id,
            claim.token,
            service.StoredCheckpoint(4, "p/", "0" * 64, 1),
        ),
        lambda: do(service.commit_model, claim.attempt_id, claim.token, model(claim)),
        lambda: do(service.finalize, claim.attempt_id, claim.token),
        lambda: end(claim),
    ]
    for write in refused:
        with pytest.raises(LeaseLost):
            write()
    assert stream(job_id) == before


def test_nobody_is_taken_over_until_the_database_was_up_for_a_lease() -> None:
    _, claim = claimed()
    _expire(claim)
    run_sql(
        "UPDATE attempts SET lease_expires_at = pg_postmaster_start_time() WHERE id = :id",
        id=claim.attempt_id,
    )
    up = one("SELECT extract(epoch FROM now() - pg_postmaster_start_time())")
    expected = [claim.attempt_id] if up > 60 else []
    assert do(service.expired) == expected


def _expire(claim: Claim) -> None:
    run_sql(
        "UPDATE attempts SET lease_expires_at = now() - interval '1 second' WHERE id = :id",
        id=claim.attempt_id,
    )


def _long_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease so short that the test's server has been up for longer."""
    from app.settings import get_settings

    monkeypatch.setenv("POLAR_LEASE", "0.01")
    get_settings.cache_clear()


# -- ingest --


def test_a_runs_first_event_makes_the_job_run() -> None:
    job_id, claim = claimed()
    ingest(claim, event(1, "phase", phase="loading"), event(2, "phase", phase="training"))
    assert stream(job_id)[-2:] == [
        ("status", {"status": "running", "phase": "loading"}),
        ("status", {"status": "running", "phase": "training"}),
    ]
    assert rows("SELECT status, phase FROM jobs WHERE id = :id", id=job_id) == [
        ("running", "training")
    ]


def test_replays_are_free() -> None:
    job_id, claim = claimed()
    events = [
        event(1, "phase", phase="training"),
        event(2, "metrics", step=1, loss=2.5),
        event(3, "metrics", step=2, loss=2.25, eval_loss=2.0),
    ]
    assert ingest(claim, *events) == 3
    once = stream(job_id)
    assert ingest(claim, *events) == 0
    assert ingest(claim, *events[1:], event(4, "metrics", step=3, loss=2.0)) == 1
    assert stream(job_id) == [*once, ("metrics", {"step": 3, "loss": 2.0})]
    latest, step = rows(
        "SELECT j.latest_metrics, a.last_step FROM jobs j JOIN attempts a ON a.job_id = j.id"
        " WHERE j.id = :id",
        id=job_id,
    )[0]
    assert latest == {"step": 3, "loss": 2.0, "eval_loss": 2.0}
    assert step == 3


def test_a_gap_is_refused_and_nothing_of_the_batch_is_kept() -> None:
    job_id, claim = claimed()
    ingest(claim, event(1, "phase", phase="training"))
    before = stream(job_id)
    with pytest.raises(EventGap, match="event 2 is missing"):
        ingest(claim, event(3, "metrics", step=1, loss=1.0))
    assert stream(job_id) == before


def test_what_becomes_an_event_and_what_only_moves_the_mark() -> None:
    job_id, claim = claimed()
    ingest(claim, event(1, "phase", phase="training"))
    before = len(stream(job_id))
    ingest(
        claim,
        event(2, "progress", step=1, total_steps=10),
        event(3, "checkpoint", step=1, path="checkpoints/step-00000001", bytes=10),
        event(4, "artifact", path="model", kind="model", bytes=10),
        event(5, "warning", code="resolve", message="fp32 on a CPU"),
        event(6, "log", level="info", message="hello"),
        event(7, "result", status="succeeded", reason=None, message="", step=1),
    )
    assert stream(job_id)[before:] == [
        ("warning", {"code": "resolve", "message": "fp32 on a CPU"}),
        ("log", {"level": "info", "message": "hello"}),
    ]
    found = rows(
        "SELECT a.last_n, j.progress FROM attempts a JOIN jobs j"
        " ON j.id = a.job_id WHERE a.id = :id",
        id=claim.attempt_id,
    )
    assert found == [(7, {"step": 1, "total_steps": 10})]


def test_b27_a_resumed_run_says_how_many_steps_were_lost() -> None:
    job_id, claim = claimed()
    ingest(claim, event(1, "phase", phase="training"), event(2, "metrics", step=11, loss=1.0))
    assert end(claim) is Status.QUEUED
    do(service.release, claim.attempt_id)
    run_sql("UPDATE jobs SET not_before = NULL WHERE id = :id", id=job_id)
    second = do(service.claim, do(service.reserve, job_id, HOST, [0]), HOST, "n")
    ingest(second, event(1, "phase", phase="loading"), event(2, "resumed", step=8))
    assert stream(job_id)[-1] == (
        "attempt",
        {"event": "recovered", "number": 2, "step": 8, "steps_lost": 3},
    )


def test_log_lines_are_kept_once() -> None:
    job_id, claim = claimed()
    write = (service.append_log, claim.attempt_id, claim.token)
    assert do(*write, ["one", "two"], 8).stored == 2
    assert do(*write, ["one", "two"], 8).stored == 0
    assert do(*write, ["three"], 14).stored == 1
    lines = [data["message"] for kind, data in stream(job_id) if kind == "log"]
    assert lines == ["one", "two", "three"]


# -- checkpoints and models --


def test_b26_at_least_two_checkpoints_are_kept() -> None:
    job_id, claim = claimed()
    retired = []
    for step in (4, 8, 12):
        made = service.StoredCheckpoint(step, f"p/step-{step}/", "0" * 64, 10)
        retired += do(service.commit_checkpoint, claim.attempt_id, claim.token, made)
    assert retired == ["p/step-4/"]
    newest = do(service.newest_checkpoints, job_id)
    assert [c.step for c in newest] == [12, 8]
    assert [d["step"] for kind, d in stream(job_id) if kind == "checkpoint"] == [4, 8, 12]


def test_committing_a_checkpoint_twice_is_silent() -> None:
    job_id, claim = claimed()
    made = service.StoredCheckpoint(4, "p/step-4/", "0" * 64, 10)
    do(service.commit_checkpoint, claim.attempt_id, claim.token, made)
    assert do(service.commit_checkpoint, claim.attempt_id, claim.token, made) == []
    assert len([1 for kind, _ in stream(job_id) if kind == "checkpoint"]) == 1


def test_the_newest_checkpoint_is_the_newest_attempts_own() -> None:
    """With `resume: never` a later attempt begins again: its steps are lower, and newer."""
    job_id, claim = claimed()
    made = service.StoredCheckpoint(12, "p/a/", "0" * 64, 10)
    do(service.commit_checkpoint, claim.attempt_id, claim.token, made)
    end(claim)
    do(service.release, claim.attempt_id)
    run_sql("UPDATE jobs SET not_before = NULL WHERE id = :id", id=job_id)
    second = do(service.claim, do(service.reserve, job_id, HOST, [0]), HOST, "n")
    made = service.StoredCheckpoint(4, "p/b/", "0" * 64, 10)
    do(service.commit_checkpoint, second.attempt_id, second.token, made)
    assert [c.step for c in do(service.newest_checkpoints, job_id)] == [4, 12]


def model(claim: Claim) -> Publication:
    prefix = f"prj_default/jobs/{claim.job_id}/{claim.attempt_id}/model/"
    file = StoredFile("model/config.json", f"{prefix}config.json", "model", 7, "1" * 64)
    return Publication(prefix, "2" * 64, [file], "full", "tiny", metrics={"loss": 1.5})


def finalizing(claim: Claim) -> None:
    ingest(claim, event(1, "phase", phase="training"))
    assert do(service.finalize, claim.attempt_id, claim.token) is True


def test_the_pointer_artifacts_and_success_are_one_commit() -> None:
    job_id, claim = claimed()
    finalizing(claim)
    assert status(job_id) == "finalizing"
    assert do(service.commit_model, claim.attempt_id, claim.token, model(claim)) is True
    assert rows("SELECT name, version, job_id, kind, size FROM model_versions") == [
        ("tiny", 1, job_id, "full", 7)
    ]
    assert rows("SELECT path, size FROM artifacts") == [("model/config.json", 7)]
    kinds = [kind for kind, _ in stream(job_id)]
    assert kinds[-2:] == ["artifact", "status"]
    assert stream(job_id)[-1][1]["status"] == "succeeded"
    assert stream(job_id)[-1][1]["model"] == {"name": "tiny", "version": 1}


def test_b29_without_registry_there_are_artifacts_and_no_version() -> None:
    job_id, claim = claimed(publish={"registry": False})
    finalizing(claim)
    assert do(service.commit_model, claim.attempt_id, claim.token, model(claim)) is True
    assert rows("SELECT id FROM model_versions") == []
    assert status(job_id) == "succeeded"


def test_a_cancel_before_the_pointer_wins_and_one_after_it_loses() -> None:
    job_id, claim = claimed()
    finalizing(claim)
    run_sql("UPDATE jobs SET cancel_requested_at = now() WHERE id = :id", id=job_id)
    assert do(service.commit_model, claim.attempt_id, claim.token, model(claim)) is False
    assert rows("SELECT id FROM model_versions") == []
    assert end(claim) is Status.CANCELLED
    other, second = claimed()
    finalizing(second)
    assert do(service.commit_model, second.attempt_id, second.token, model(second)) is True
    run_sql("UPDATE jobs SET cancel_requested_at = now() WHERE id = :id", id=other)
    assert status(other) == "succeeded"


# -- endings --


def test_a_retry_never_passes_through_failed(settings: Settings) -> None:
    job_id, claim = claimed(max_attempts=2)
    ingest(claim, event(1, "phase", phase="training"))
    assert end(claim) is Status.QUEUED
    do(service.release, claim.attempt_id)
    wait = one("SELECT extract(epoch FROM not_before - updated_at) FROM jobs")
    assert float(wait) == pytest.approx(settings.retry_base)
    run_sql("UPDATE jobs SET not_before = NULL")
    second = do(service.claim, do(service.reserve, job_id, HOST, [0]), HOST, "n")
    assert end(second) is Status.FAILED
    said = [d["status"] for kind, d in stream(job_id) if kind == "status"]
    assert said == ["provisioning", "running", "queued", "provisioning", "failed"]
    message = one("SELECT message FROM jobs WHERE id = :id", id=job_id)
    assert message == "it is gone (attempt 2 of 2, the last)"
    interrupted = [d for kind, d in stream(job_id) if d.get("event") == "interrupted"]
    assert [d["reason"] for d in interrupted] == ["killed"]


def test_back_off_doubles(settings: Settings) -> None:
    job_id, claim = claimed(max_attempts=4)
    waits = []
    for _ in range(3):
        end(claim)
        do(service.release, claim.attempt_id)
        waits.append(float(one("SELECT extract(epoch FROM not_before - updated_at) FROM jobs")))
        run_sql("UPDATE jobs SET not_before = NULL")
        claim = do(service.claim, do(service.reserve, job_id, HOST, [0]), HOST, "n")
    base = settings.retry_base
    assert waits == pytest.approx([base, 2 * base, 4 * base])


def test_an_interruption_after_progress_uses_no_attempt_up() -> None:
    job_id, claim = claimed(max_attempts=2)
    stop = Ending("interrupted", FailureReason.INTERRUPTED, "the host is stopped", 75)
    for step in (5, 9, 12):
        events = [event(1, "phase", phase="training"), event(2, "metrics", step=step, loss=1.0)]
        ingest(claim, *events)
        assert do(service.finish, claim.attempt_id, claim.token, stop) is Status.QUEUED
        do(service.release, claim.attempt_id)
        run_sql("UPDATE jobs SET not_before = NULL")
        claim = do(service.claim, do(service.reserve, job_id, HOST, [0]), HOST, "n")
        ingest(claim, event(1, "resumed", step=step))
    # Without a new step: forgiven so many times, then counted, or it could go on for ever.
    for _ in range(FORGIVEN + 1):
        assert do(service.finish, claim.attempt_id, claim.token, stop) is Status.QUEUED
        claim = again(job_id, claim)
        ingest(claim, event(1, "resumed", step=8), event(2, "metrics", step=12, loss=1.0))
    assert do(service.finish, claim.attempt_id, claim.token, stop) is Status.FAILED


def test_b11_a_reason_that_is_the_jobs_own_is_not_retried() -> None:
    job_id, claim = claimed()
    assert end(claim, FailureReason.OUT_OF_MEMORY) is Status.FAILED
    found = rows("SELECT status, reason, message FROM jobs WHERE id = :id", id=job_id)
    assert found == [("failed", "out_of_memory", "it is gone")]


def test_b14_clean_up_never_rewrites_the_outcome() -> None:
    job_id, claim = claimed(max_attempts=1)
    end(claim)
    do(service.release, claim.attempt_id, "process 77 could not be killed")
    assert rows("SELECT outcome, cleanup_error, released_at FROM attempts") == [
        ("failed", "process 77 could not be killed", None)
    ]
    assert rows("SELECT index FROM devices WHERE attempt_id IS NOT NULL") == [(0,)]
    do(service.release, claim.attempt_id)
    assert rows("SELECT outcome, cleanup_error FROM attempts") == [("failed", None)]
    assert rows("SELECT index FROM devices WHERE attempt_id IS NOT NULL") == []
    assert status(job_id) == "failed"


def test_an_open_attempt_is_not_released() -> None:
    _, claim = claimed()
    do(service.release, claim.attempt_id)
    assert rows("SELECT index FROM devices WHERE attempt_id IS NOT NULL") == [(0,)]
