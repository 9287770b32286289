"""Jobs that train in two processes: through the service, with a rank that dies, and cancelled."""

import time
from typing import Any

import psutil
import pytest

from tests.e2e.harness import World
from tests.services import wait_until
from tests.trainer_core.small_tasks import talks, write_rows

pytestmark = pytest.mark.train

BLOCKS: dict[str, Any] = {
    "distributed": {"strategy": "ddp"},
    "checkpoint": {"save_steps": 5},
    "steps": 24,
}


def _ranks(launcher: psutil.Process) -> list[psutil.Process]:
    """The processes of the trainer, rank 0 first."""
    return sorted(launcher.children(), key=lambda process: process.pid)


def test_a7_a_job_in_two_processes_is_as_one(world: World) -> None:
    """Three epochs of 40 rows, four in each step: the same losses, and a tenth of that of rows that
    are held out is gone."""
    rows, measured = talks(40), []
    held = [row for row in talks(20, seed=1) if row not in rows]
    train = write_rows(world.data / "ddp.jsonl", rows)
    validation = write_rows(world.data / "ddp-held.jsonl", held)
    for distributed, accumulated in ((BLOCKS["distributed"], 1), ({"strategy": "none"}, 2)):
        spec = world.spec(
            distributed=distributed,
            data={
                "train": [{"source": "folder", "path": str(train)}],
                "validation": [{"source": "folder", "path": str(validation)}],
            },
            evaluation={"compare_base": True},
        )
        del spec["training"]["max_steps"], spec["adapter"]
        spec["training"] |= {"num_train_epochs": 3, "gradient_accumulation_steps": accumulated}
        job = str(world.client.submit(spec)["id"])
        world.until(job, "succeeded")
        told = [e["data"] for e in world.events(job) if "eval_loss" in e["data"]]
        measured.append((world.losses(job), [each["eval_loss"] for each in told]))
    (losses, held_out), (losses_of_one, held_out_of_one) = measured
    assert losses.keys() == losses_of_one.keys() == set(range(1, 31))
    # fp32: sums of two halves round elsewhere than one sum, 1e-7 a step at losses of about 6.
    assert losses == pytest.approx(losses_of_one, abs=1e-5)
    assert held_out == pytest.approx(held_out_of_one, abs=1e-5)
    assert held_out[-1] <= 0.9 * held_out[0]


def test_a_dead_rank_costs_an_attempt_and_no_step(world: World) -> None:
    """Rank 1 is killed after the checkpoint of step 10; the next attempt goes on from it."""
    undisturbed = world.submit(**BLOCKS)
    world.until(undisturbed, "succeeded")
    killed = world.submit(**BLOCKS)
    trainer = world.trainer(killed)
    folder = world.attempt_folder(killed)
    assert folder is not None
    deadline = time.monotonic() + 60
    while not (folder / "checkpoints" / "step-00000010" / "manifest.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    ranks = _ranks(trainer)
    assert len(ranks) == 2
    ranks[1].kill()
    job = world.until(killed, "succeeded")
    first, second = job["attempts"]
    assert (first["outcome"], first["reason"]) == ("failed", "killed")
    assert "rank 1 of 2 processes was killed by SIGKILL" in first["message"]
    assert second["resumed_step"] >= 10
    assert world.losses(killed) == world.losses(undisturbed)
    wait_until(lambda: not world.leftovers(killed), timeout=20)


def test_a_cancel_reaches_every_rank(world: World) -> None:
    job = world.submit(**BLOCKS | {"steps": 100_000})
    trainer = world.trainer(job)
    wait_until(lambda: len(world.losses(job)) > 3, timeout=60)
    ranks = _ranks(trainer)
    assert len(ranks) == 2
    world.client.cancel(job)
    world.until(job, "cancelled")
    wait_until(lambda: not any(rank.is_running() for rank in ranks), timeout=20)
    wait_until(lambda: not world.leftovers(job), timeout=20)
