"""Jobs that train in two processes: through the service, with a rank that dies, and cancelled."""

import time
from typing import Any

import psutil
import pytest

from tests.e2e.harness import World
from tests.services import wait_until

pytestmark = pytest.mark.train

BLOCKS: dict[str, Any] = {
    "distributed": {"strategy": "ddp"},
    "checkpoint": {"save_steps": 5},
    "steps": 24,
}


def _ranks(launcher: psutil.Process) -> list[psutil.Process]:
    """The processes of the trainer, rank 0 first."""
    return sorted(launcher.children(), key=lambda process: process.pid)


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
