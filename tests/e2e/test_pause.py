"""A pause in every phase: the machine comes back, and a resume ends as if nothing had been."""

from typing import Any

import psutil
import pytest

from polar import ApiError
from tests.e2e.harness import GRACE, World
from tests.services import wait_until

pytestmark = pytest.mark.train
LORA = {"type": "lora", "r": 4, "lora_alpha": 8, "lora_dropout": 0.2}
STEPS = 40


def spec_of(world: World, adapter: Any = LORA) -> dict[str, Any]:
    spec = world.spec(steps=STEPS, task={"packing": True}, checkpoint={"save_steps": 100})
    spec["adapter"] = adapter
    return spec


def submit(world: World, adapter: Any = LORA) -> str:
    return str(world.client.submit(spec_of(world, adapter))["id"])


@pytest.fixture(scope="module")
def undisturbed(world: World) -> dict[int, float]:
    """The losses of a run that nobody disturbs."""
    job_id = submit(world)
    world.until(job_id, "succeeded")
    losses = world.losses(job_id)
    assert sorted(losses) == list(range(1, STEPS + 1))
    return losses


def paused(world: World, job_id: str) -> dict[str, Any]:
    """Wait for the pause; see that nothing is left on the machine and that no attempt is used."""
    job = world.until(job_id, "paused", timeout=GRACE + 30)
    wait_until(lambda: not world.leftovers(job_id), timeout=20)
    for attempt in world.get(job_id)["attempts"]:
        assert (attempt["outcome"], attempt["reason"]) == ("interrupted", None)
        assert attempt["released_at"]
    assert world.client.pause(job_id)["status"] == "paused"  # again: nothing changes
    return job


def resumed(world: World, job_id: str) -> dict[str, Any]:
    """Resume, and wait for the end."""
    answer = world.client.resume(job_id)
    assert (answer["status"], answer["pause_requested_at"]) == ("queued", None)
    job = world.until(job_id, "succeeded")
    statuses = [e["data"]["status"] for e in world.events(job_id) if e["type"] == "status"]
    assert statuses.count("paused") == 1
    assert statuses.count("succeeded") == 1
    return job


def stop_within_a_step(world: World, job_id: str, trainer: psutil.Process) -> None:
    """Pause a frozen trainer and let it go on: the pause meets it where it stands."""
    assert world.client.pause(job_id)["pause_requested_at"]
    world.resume_once_told(trainer)


def test_paused_in_training_the_losses_are_the_undisturbed_runs(
    world: World, undisturbed: dict[int, float]
):
    job_id = submit(world)
    stop_within_a_step(world, job_id, world.freeze_after(job_id, 12))
    job = paused(world, job_id)
    step = job["attempts"][0]["last_step"]
    assert 12 <= step < STEPS
    stored = world.client.request("GET", f"/jobs/{job_id}/checkpoints")["items"]
    assert max(each["step"] for each in stored) == step, "its whole checkpoint is in the store"
    job = resumed(world, job_id)
    assert [a["outcome"] for a in job["attempts"]] == ["interrupted", "succeeded"]
    assert job["attempts"][1]["resumed_step"] == step
    assert job["attempts"][0]["steps_lost"] == 0
    assert world.losses(job_id) == undisturbed


@pytest.mark.sampled
def test_full_fine_tuning_paused_twice(world: World):
    first = submit(world, adapter=None)
    world.until(first, "succeeded")
    job_id = submit(world, adapter=None)
    for step in (8, 20):
        stop_within_a_step(world, job_id, world.freeze_after(job_id, step))
        paused(world, job_id)
        assert world.client.resume(job_id)["status"] == "queued"
        wait_until(lambda: world.get(job_id)["status"] != "queued", timeout=60)
    world.until(job_id, "succeeded")
    assert world.losses(job_id) == world.losses(first)


@pytest.mark.sampled
def test_paused_while_its_data_is_prepared(world: World):
    job_id = world.submit(rows="many.jsonl", task={"max_length": 63})
    running = "SELECT 1 FROM preparations WHERE job_id = %s AND status = 'running'"
    wait_until(lambda: world.sql(running, job_id), timeout=60)
    assert world.client.pause(job_id)["status"] == "paused"
    waiting = [("waiting",)]
    status = "SELECT status FROM preparations WHERE job_id = %s"
    wait_until(lambda: world.sql(status, job_id) == waiting, timeout=20)
    paused(world, job_id)
    resumed(world, job_id)


@pytest.mark.sampled
def test_paused_while_provisioning(world: World):
    """As people do it, at the command line."""
    with world.frozen("worker"):
        job_id = world.submit()
        world.until(job_id, "provisioning")
        assert "provisioning, pausing" in world.polar("pause", job_id)
        paused(world, job_id)
    assert f"{job_id}: queued" in world.polar("resume", job_id)
    world.until(job_id, "succeeded")


@pytest.mark.sampled
@pytest.mark.parametrize("phase", ["loading", "evaluating"])
def test_paused_in_the_trainers_phase(world: World, phase: str):
    blocks: dict[str, Any] = {
        "steps": 6,
        "data": {"validation": [{"source": "folder", "path": str(world.data / "few.jsonl")}]},
        "evaluation": {"strategy": "steps", "steps": 3},
    }
    first = world.submit(**blocks)
    world.until(first, "succeeded")
    job_id = world.submit(**blocks)
    trainer = world.freeze_at(job_id, phase)
    world.until(job_id, phase)
    stop_within_a_step(world, job_id, trainer)
    paused(world, job_id)
    resumed(world, job_id)
    assert world.losses(job_id) == world.losses(first)


@pytest.mark.sampled
def test_once_the_model_is_being_published_it_is_too_late(world: World):
    job_id = world.submit(steps=3)
    trainer = world.freeze_at(job_id, "publishing")
    world.until(job_id, "publishing")
    with pytest.raises(ApiError, match="training is over") as refused:
        world.client.pause(job_id)
    assert (refused.value.status, refused.value.code) == (409, "job_finalizing")
    trainer.resume()
    world.until(job_id, "succeeded")
    assert world.get(job_id)["pause_requested_at"] is None


@pytest.mark.sampled
def test_a_pause_that_is_taken_back_disturbs_nothing(world: World, undisturbed: dict[int, float]):
    job_id = submit(world)
    trainer = world.freeze_after(job_id, 12)
    world.client.pause(job_id)
    assert world.client.resume(job_id)["status"] == "running"
    trainer.resume()
    job = world.until(job_id, "succeeded")
    assert job["attempts"][-1]["outcome"] == "succeeded"
    assert world.losses(job_id) == undisturbed


@pytest.mark.sampled
def test_a_cancel_overtakes_a_pause(world: World):
    job_id = submit(world)
    trainer = world.freeze_after(job_id, 5)
    world.client.pause(job_id)
    world.client.cancel(job_id)
    with pytest.raises(ApiError, match="being cancelled"):
        world.client.pause(job_id)
    trainer.resume()
    job = world.until(job_id, "cancelled", timeout=GRACE + 30)
    assert [a["outcome"] for a in job["attempts"]] == ["cancelled"]


@pytest.mark.sampled
def test_a_trainer_that_does_not_listen_is_paused_by_force(
    world: World, undisturbed: dict[int, float]
):
    spec = spec_of(world) | {"checkpoint": {"save_steps": 5}}
    job_id = str(world.client.submit(spec)["id"])
    world.freeze_after(job_id, 12)
    world.client.pause(job_id)
    paused(world, job_id)
    job = resumed(world, job_id)
    assert job["attempts"][1]["resumed_step"] >= 5
    assert world.losses(job_id) == undisturbed
