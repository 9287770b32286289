"""An upgrade replaces the processes one by one, while a job trains and a stream is open."""

import threading
from typing import Any

import pytest

from polar.stack.state import running_state
from tests.e2e.harness import World
from tests.plain import Plain
from tests.services import wait_until

pytestmark = [pytest.mark.train, pytest.mark.drill]

STEPS = 1000
ORDER = ("api", "reconciler", "control", "beat", "prepare", "worker")


def submit(world: World) -> str:
    spec = world.spec(steps=STEPS, task={"packing": True}, checkpoint={"save_steps": 50})
    spec["adapter"] = {"type": "lora", "r": 4, "lora_alpha": 8, "lora_dropout": 0.2}
    return str(world.client.submit(spec)["id"])


def restart(world: World, name: str) -> None:
    """Have a process end in order, and wait until another one is ready in its place."""
    process = world.process(name)
    process.terminate()

    def replaced() -> bool:
        state = running_state(world.home)
        assert state is not None
        now = state.processes[name]
        return now.condition == "ready" and now.pid != process.pid

    wait_until(replaced, timeout=120, every=0.1)


def test_nothing_is_lost_while_processes_are_replaced(world: World) -> None:
    undisturbed = submit(world)
    world.until(undisturbed, "succeeded", timeout=240)
    job_id = submit(world)
    world.until(job_id, "training")
    frames: list[Any] = []

    def follow() -> None:
        with Plain(world.client.url, world.client.key) as client:
            frames.extend(client.events(job_id))

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    progress = "SELECT last_step FROM attempts WHERE job_id = %s ORDER BY number DESC LIMIT 1"
    for name in ORDER:
        assert world.sql("SELECT status FROM jobs WHERE id = %s", job_id) == [("running",)], name
        reached = world.sql(progress, job_id)[0][0] or 0
        restart(world, name)
        if name != "worker":  # nobody but its own host's worker makes it pause
            wait_until(
                lambda before=reached: (world.sql(progress, job_id)[0][0] or 0) > before, timeout=60
            )
            assert len(world.sql("SELECT id FROM attempts WHERE job_id = %s", job_id)) == 1
    world.until(job_id, "succeeded", timeout=240)
    reader.join(60)
    ids = [frame.seq for frame in frames if frame.seq is not None]
    assert ids == list(range(1, len(ids) + 1))
    assert (frames[-1].type, frames[-1].body["status"]) == ("end", "succeeded")
    assert world.losses(job_id) == world.losses(undisturbed)
    assert len(world.losses(job_id)) == STEPS
    attempts = world.get(job_id)["attempts"]
    assert [a["outcome"] for a in attempts] == ["interrupted", "succeeded"]
    assert attempts[1]["resumed_step"] >= (reached or 0)
