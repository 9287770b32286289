"""Placement on a real Postgres: no job twice, no device twice, and words for those who wait."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import worker.placement
from app.attempts.service import Ending, finish, release
from app.db import transaction
from app.jobs.lifecycle import FailureReason
from tests.worker.world import add_host, add_job, one, rows, run_sql
from worker.placement import place

pytestmark = pytest.mark.usefixtures("settings")
HERE = "reconciler-1"


def place_once() -> int:
    with transaction() as session:
        return place(session, HERE)


def waiting_for(job_id: str) -> str | None:
    return one("SELECT waiting_for FROM jobs WHERE id = :id", id=job_id)


def test_a_prepared_job_gets_its_devices_and_its_host_a_hint():
    job, host = add_job(), add_host("h1", slots=1)
    assert place_once() == 1
    [(attempt, worker, devices)] = rows("SELECT id, worker_id, devices FROM attempts")
    assert (worker, devices) == (host, [0])
    assert one("SELECT status FROM jobs WHERE id = :id", id=job) == "provisioning"
    assert one("SELECT attempt_id FROM devices") == attempt
    assert rows("SELECT queue, handler, args FROM outbox") == [("host.h1", "run", [attempt])]


def test_priority_goes_before_age_and_waiting_jobs_say_how_many_are_ahead():
    add_host("h1", slots=1)
    old, young, urgent = add_job(), add_job(), add_job(priority=5)
    assert place_once() == 1
    assert one("SELECT job_id FROM attempts") == urgent
    assert waiting_for(old) == "next in line, all devices are busy"
    assert waiting_for(young) == "1 job ahead"
    assert waiting_for(urgent) is None


def test_jobs_that_cannot_start_yet_say_why():
    unprepared, later = add_job(prepared=False), add_job()
    run_sql("UPDATE jobs SET not_before = '2099-01-01 10:00:05Z' WHERE id = :id", id=later)
    assert place_once() == 0
    assert waiting_for(unprepared) == "no prepare worker online"
    assert waiting_for(later) == "back-off until 10:00:05 UTC"
    run_sql("UPDATE preparations SET status = 'running'")
    run_sql("UPDATE jobs SET waiting_for = 'attempt 2 of 3 after killed' WHERE id = :id", id=later)
    assert place_once() == 0
    assert waiting_for(unprepared) == "its data is being prepared"
    assert waiting_for(later) == "attempt 2 of 3 after killed"


@pytest.mark.parametrize(
    "change", ["draining = true", "seen_at = now() - interval '61 seconds'", "kind = 'prepare'"]
)
def test_hosts_that_drain_or_are_not_seen_get_nothing(change: str):
    add_host("h1", slots=1)
    run_sql(f"UPDATE workers SET {change}")  # noqa: S608
    job = add_job()
    assert place_once() == 0
    drained = change.startswith("draining")
    expected = "every worker online is being drained" if drained else "no worker online"
    assert waiting_for(job) == expected


def test_a_job_that_is_to_be_cancelled_or_paused_is_not_placed():
    add_host("h1", slots=2)
    for column in ("cancel_requested_at", "pause_requested_at"):
        run_sql(f"UPDATE jobs SET {column} = now() WHERE id = :id", id=add_job())  # noqa: S608
    assert place_once() == 0


def test_gpus_are_asked_for_by_name_count_and_memory():
    add_host("cpu", slots=1)
    add_host("a", [("cuda", "NVIDIA A100", 40.0)] * 2)
    add_host("h", [("cuda", "NVIDIA H200", 141.0)] * 2)
    job = add_job(gpus={"name": "h200", "count": 2, "min_memory_gb": 100})
    no = add_job(gpus={"name": "B200", "count": 1})
    assert place_once() == 1
    assert rows("SELECT job_id, worker_id, devices FROM attempts") == [(job, "h", [0, 1])]
    assert waiting_for(no) == "no worker online has 1 × B200"


def test_released_devices_go_to_the_next_job():
    add_host("h1", slots=1)
    first, second = add_job(max_attempts=1), add_job()
    assert place_once() == 1
    assert place_once() == 0
    attempt = one("SELECT id FROM attempts WHERE job_id = :id", id=first)
    with transaction() as session:
        finish(session, attempt, None, Ending("failed", FailureReason.TRAINER_ERROR, "it broke"))
        release(session, attempt)
    assert place_once() == 1
    assert one("SELECT status FROM jobs WHERE id = :id", id=second) == "provisioning"


def test_a_fake_job_needs_no_host_and_sends_no_hint():
    job = add_job(target="fake")
    assert place_once() == 1
    assert rows("SELECT job_id, worker_id, devices FROM attempts") == [(job, HERE, [])]
    assert one("SELECT count(*) FROM outbox") == 0


def crowd(count: int, prepared: str, not_before: str, gpus: str = "null") -> None:
    """Insert so many jobs that are ahead of everybody."""
    run_sql(
        "INSERT INTO jobs (id, project_id, name, priority, task_type, backend, target, spec,"  # noqa: S608
        " resolved, max_attempts, prepared_key, not_before) SELECT 'job_crowd_' || n,"
        " 'prj_default', 'n', 9, 'sft', 'hf', 'local',"
        f" jsonb_build_object('compute', jsonb_build_object('gpus', CAST('{gpus}' AS jsonb))),"
        f" '{{}}', 1, {prepared}, {not_before} FROM generate_series(1, :count) n",
        count=count,
    )


@pytest.mark.parametrize(
    ("prepared", "not_before", "gpus", "reason"),
    [
        ("NULL", "NULL", "null", "no prepare worker online"),
        ("'k'", "now() + interval '1 h'", "null", None),
        ("'k'", "NULL", '{"count": 1, "name": "B200"}', "no GPU worker online"),
    ],
)
def test_jobs_that_cannot_start_block_nobody_however_many_they_are(
    prepared: str, not_before: str, gpus: str, reason: str | None
):
    add_host("h1", slots=1)
    crowd(5100, prepared, not_before, gpus)
    job = add_job()
    assert place_once() == 1
    assert rows("SELECT job_id FROM attempts") == [(job,)]
    if reason is not None:
        told = "SELECT count(*) FROM jobs WHERE waiting_for = :reason"
        assert one(told, reason=reason) == 5000


def test_pages_of_the_queue_keep_its_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker.placement, "PAGE", 3)
    add_host("busy", [("cuda", "A100", 40.0)])
    add_job(gpus={"count": 1, "name": "A100"})
    assert place_once() == 1
    add_host("free", [("cuda", "H100", 80.0)] * 8)
    jobs: list[tuple[int, str]] = []
    for number in range(12):
        priority = number % 3
        jobs.append((priority, add_job(priority=priority, gpus={"count": 1, "name": "H100"})))
        add_job(priority=priority, gpus={"count": 1, "name": "A100"})
    assert place_once() == 8
    first = [job for _, job in sorted(jobs, key=lambda each: -each[0])][:8]
    assert [job for (job,) in rows("SELECT job_id FROM attempts ORDER BY id")][1:] == first


def test_many_reconcilers_never_place_a_job_or_a_device_twice():
    for host in range(4):
        add_host(f"h{host}", slots=5)
    jobs = {add_job() for _ in range(40)}
    with ThreadPoolExecutor(8) as pool:
        placed = list(pool.map(lambda _: place_once(), range(80)))
    attempts = rows("SELECT job_id, worker_id, devices FROM attempts")
    assert sum(placed) == len(attempts) == 20
    assert len({job for job, _, _ in attempts} & jobs) == 20
    assert len({(worker, devices[0]) for _, worker, devices in attempts}) == 20
    assert one("SELECT count(*) FROM devices WHERE attempt_id IS NULL") == 0
    assert one("SELECT count(*) FROM jobs WHERE waiting_for LIKE '%ahead'") == 19
