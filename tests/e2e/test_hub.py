"""A31: a trained model and its checkpoints get to a hub, whoever is killed on the way."""

import hashlib
import threading

import pytest

from tests.e2e.harness import World
from tests.hub import Hub
from tests.services import wait_until

pytestmark = pytest.mark.train
LAST = "last-checkpoint/"


def test_a31_a_model_gets_to_the_hub_though_who_pushes_is_killed(world: World, hub: Hub) -> None:
    world.client.request("PUT", "/secrets/hub-token", json={"value": hub.token})
    wish = {"repo_id": "org/shop", "strategy": "checkpoint", "token": {"secret": "hub-token"}}
    hub.held = threading.Event()
    job = world.submit(steps=8, checkpoint={"save_steps": 4}, publish={"hub": wish})
    world.until(job, "succeeded")  # though the hub has taken nothing yet
    assert hub.arrived.wait(120)
    world.process("reconciler").kill()
    hub.held.set()
    hub.held = None

    def pushed() -> bool:
        ref = world.get(job)["external_refs"]["hub"]
        return bool(ref["state"] == "pushed" and ref["kind"] == "model")

    wait_until(pushed, timeout=180)
    kept = {
        each["path"].removeprefix("model/"): each["sha256"]
        for each in world.client.artifacts(job)
        if each["kind"] == "model"
    }
    files = hub.repos["org/shop"].files
    found = {p: hashlib.sha256(c).hexdigest() for p, c in files.items() if not p.startswith(LAST)}
    del found[".gitattributes"]
    assert found == kept
    models = [c for c in hub.commits("org/shop") if ": model (" in c.message]
    assert len(models) == 1
    last = world.events(job)[-1]
    assert (last["type"], last["data"]["commit"]) == ("hub", models[0].oid)
    assert world.get(job)["status"] == "succeeded"
