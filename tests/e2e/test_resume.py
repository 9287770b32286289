"""A trainer that is killed goes on from its checkpoint, to the last digit."""

import time
from typing import Any

import pytest

from tests.e2e.harness import World
from tests.services import wait_until

pytestmark = pytest.mark.train

LORA = {"type": "lora", "r": 4, "lora_alpha": 8, "lora_dropout": 0.2}


@pytest.mark.parametrize("adapter", [LORA, None], ids=["lora", "full"])
def test_kill_9_gives_the_undisturbed_runs_losses(world: World, adapter: Any):
    blocks: dict[str, Any] = {
        "task": {"packing": True},
        "checkpoint": {"save_steps": 5},
        "steps": 24,
    }
    spec = world.spec(**blocks)
    spec["adapter"] = adapter
    undisturbed = str(world.client.submit(spec)["id"])
    world.until(undisturbed, "succeeded")
    killed = str(world.client.submit(spec)["id"])
    trainer = world.freeze_at(killed, "training")
    trainer.resume()
    folder = world.attempt_folder(killed)
    assert folder is not None
    deadline = time.monotonic() + 60
    while not (folder / "checkpoints" / "step-00000010" / "manifest.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    trainer.kill()
    job = world.until(killed, "succeeded")
    first, second = job["attempts"]
    assert (first["outcome"], first["reason"]) == ("failed", "killed")
    assert second["resumed_step"] >= 10
    assert world.losses(killed) == world.losses(undisturbed)
    assert len(world.losses(killed)) == 24
    wait_until(lambda: not world.leftovers(killed), timeout=20)
