"""A host that is emptied: nothing new comes, and what runs there finishes or moves whole."""

from collections.abc import Iterator

import pytest

from tests.e2e.harness import World
from tests.e2e.test_pause import submit
from tests.e2e.test_pause import undisturbed as undisturbed
from tests.services import wait_until

pytestmark = pytest.mark.train
HOST = "SELECT id FROM workers WHERE kind = 'host'"


@pytest.fixture(autouse=True)
def _in_service_again(world: World) -> Iterator[None]:
    yield
    world.client.undrain(world.sql(HOST)[0][0])


@pytest.mark.sampled
def test_a_drained_host_finishes_what_it_has_and_gets_nothing_new(world: World):
    job_id = submit(world)
    trainer = world.freeze_after(job_id, 5)
    assert "gets no more jobs; 1 of its devices are busy, finishing" in world.polar(
        "worker", "drain"
    )
    waiting = submit(world)
    told = "every worker online is being drained"
    # Its data are not prepared either: the host's prepare worker is drained with it.
    wait_until(lambda: world.get(waiting)["waiting_for"] in (told, "a free prepare worker"), 30)
    trainer.resume()
    assert len(world.until(job_id, "succeeded")["attempts"]) == 1
    assert world.get(waiting)["status"] == "queued"
    assert "gets jobs again" in world.polar("worker", "drain", "--undo")
    world.until(waiting, "succeeded")


@pytest.mark.sampled
def test_drained_now_a_job_moves_with_its_losses(world: World, undisturbed: dict[int, float]):
    job_id = submit(world)
    trainer = world.freeze_after(job_id, 12)
    host = world.sql(HOST)[0][0]
    assert "asked to move" in world.polar("worker", "drain", "--host", host, "--now")
    world.resume_once_told(trainer)
    job = world.until(job_id, "queued")
    [attempt] = job["attempts"]
    assert (attempt["outcome"], attempt["reason"]) == ("interrupted", "interrupted")
    told = "every worker online is being drained"
    wait_until(lambda: world.get(job_id)["waiting_for"] == told, timeout=30)
    world.client.undrain(host)
    job = world.until(job_id, "succeeded")
    assert job["attempts"][1]["resumed_step"] == attempt["last_step"] >= 12
    assert world.losses(job_id) == undisturbed


@pytest.mark.sampled
def test_a_worker_that_is_told_to_end_hands_back_whole(world: World, undisturbed: dict[int, float]):
    """The stack starts it again, and the job goes on where it was."""
    job_id = submit(world)
    trainer = world.freeze_after(job_id, 12)
    worker = world.process("worker")
    worker.terminate()
    world.resume_once_told(trainer)
    worker.wait(60)
    [attempt, *_] = world.get(job_id)["attempts"]
    assert attempt["outcome"] == "interrupted", "the worker is the last to go"
    assert attempt["last_step"] >= 12
    job = world.until(job_id, "succeeded", timeout=120)
    assert job["attempts"][1]["resumed_step"] == attempt["last_step"]
    assert world.losses(job_id) == undisturbed


@pytest.mark.sampled
def test_a_prepare_worker_that_is_told_to_end_hands_back(world: World):
    job_id = world.submit(rows="many.jsonl", task={"max_length": 62})
    preparation = "SELECT status, tries FROM preparations WHERE job_id = %s"
    wait_until(lambda: world.sql(preparation, job_id) == [("running", 1)], timeout=60)
    worker = world.process("prepare")
    worker.terminate()
    worker.wait(60)
    # The stack starts it again; the try that it handed back does not count.
    world.until(job_id, "succeeded", timeout=120)
    assert world.sql(preparation, job_id) == [("done", 1)]
