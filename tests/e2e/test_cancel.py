"""A cancel ends right in every phase: within the grace time, and with no process left."""

import time
from collections.abc import Callable

import pytest

from tests.e2e.harness import GRACE, SLOTS, World
from tests.services import wait_until

pytestmark = pytest.mark.train

# The holder looks at the job every second or so, kills after the grace time, and tells the service.
WITHIN = GRACE + 10.0


def cancelled(world: World, job_id: str) -> None:
    """Cancel, and see that the job ends so in time, whole and without a trace."""
    answer = world.client.cancel(job_id)
    assert answer["cancel_requested_at"] or answer["status"] == "cancelled"
    began = time.monotonic()
    job = world.until(job_id, "cancelled", timeout=WITHIN)
    assert time.monotonic() - began < WITHIN
    assert job["reason"] is None
    wait_until(lambda: not world.leftovers(job_id), timeout=15)
    job = world.get(job_id)
    assert [a["outcome"] for a in job["attempts"]] == ["cancelled"] * len(job["attempts"])
    assert all(a["released_at"] for a in job["attempts"])
    assert job["external_refs"]["model"] is None
    assert world.client.cancel(job_id)["status"] == "cancelled"  # again: nothing changes
    last = world.events(job_id)[-1]
    assert (last["type"], last["data"]["status"]) == ("status", "cancelled")


def test_queued(world: World):
    busy = [world.submit(steps=100_000) for _ in range(SLOTS)]
    for job_id in busy:
        world.until(job_id, "training")
    waiting = world.submit()
    wait_until(lambda: "next in line" in (world.get(waiting)["waiting_for"] or ""), timeout=60)
    cancelled(world, waiting)
    for job_id in busy:
        cancelled(world, job_id)


def test_preparing_before_anybody_began(world: World):
    with world.frozen("prepare"):
        job_id = world.submit(rows="many.jsonl")
        cancelled(world, job_id)


@pytest.mark.sampled
def test_preparing(world: World):
    job_id = world.submit(rows="many.jsonl", task={"max_length": 65})
    wait_until(
        lambda: world.sql(
            "SELECT 1 FROM preparations WHERE job_id = %s AND status = 'running'", job_id
        ),
        timeout=60,
    )
    cancelled(world, job_id)
    assert world.sql("SELECT status FROM preparations WHERE job_id = %s", job_id) == [("failed",)]


@pytest.mark.sampled
def test_provisioning(world: World):
    with world.frozen("worker"):
        job_id = world.submit()
        world.until(job_id, "provisioning")
        cancelled(world, job_id)


@pytest.mark.sampled
@pytest.mark.parametrize("phase", ["loading", "training", "evaluating", "publishing"])
def test_in_the_trainers_phase(world: World, phase: str):
    job_id = world.submit(
        steps=3,
        data={"validation": [{"source": "folder", "path": str(world.data / "few.jsonl")}]},
    )
    trainer = world.freeze_at(job_id, phase)
    world.until(job_id, phase)
    resume: Callable[[], None] = trainer.resume
    world.client.cancel(job_id)
    resume()
    cancelled(world, job_id)


@pytest.mark.sampled
def test_a_trainer_that_does_not_listen_is_killed_after_the_grace_time(world: World):
    job_id = world.submit(steps=100_000)
    world.freeze_at(job_id, "training")
    cancelled(world, job_id)
