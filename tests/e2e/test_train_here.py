"""`polar train` on this machine and the same spec as a job: one trainer, the same losses."""

import json
from pathlib import Path

import pytest

from tests.e2e.harness import World

pytestmark = pytest.mark.train


def test_training_here_gives_the_losses_of_the_service(world: World, tmp_path: Path) -> None:
    """Step by step; how many threads share a sum rounds its seventh digit."""
    spec = world.spec(steps=4)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    job = world.client.submit(spec)
    world.until(job["id"], "succeeded")
    said = world.polar("train", str(path), f"--out={tmp_path / 'run'}", "--json", timeout=120)
    frames = [json.loads(line) for line in said.splitlines()]
    assert frames[-1]["status"] == "succeeded"
    losses = {
        frame["data"]["step"]: frame["data"]["loss"]
        for frame in frames
        if frame["type"] == "metrics" and "loss" in frame["data"]
    }
    assert losses == pytest.approx(world.losses(job["id"]), rel=1e-5)
    assert sorted(losses) == [1, 2, 3, 4]
