"""A sweep from the command line: four runs, compared by the service, the best registered."""

import json
from pathlib import Path

import pytest

from tests.e2e.harness import World

pytestmark = pytest.mark.train


def test_the_best_of_four_is_named_and_registered(world: World, tmp_path: Path) -> None:
    """Two learning rates and two ranks; the lowest loss of the last step, by the runs' own metrics,
    is the best one's, and its model alone is registered."""
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({**world.spec(steps=4), "name": "swept"}))
    said = world.polar(
        "train",
        str(path),
        "training.learning_rate=1e-4,0.02",
        "adapter.r=2,4",
        "--multirun",
        "--metric=loss",
        "--json",
        timeout=240,
    )
    sweep = json.loads(said.splitlines()[-1])
    assert sweep["status"] == "finished"
    axes = [(f["training.learning_rate"], f["adapter.r"]) for f in _fields(sweep)]
    assert axes == [(1e-4, 2), (1e-4, 4), (0.02, 2), (0.02, 4)]
    last = {run["job_id"]: world.losses(run["job_id"])[4] for run in sweep["runs"]}
    best = min(last, key=lambda job: last[job])
    assert sweep["best"]["job_id"] == best
    assert sweep["best"]["value"] == pytest.approx(last[best])
    model = sweep["best"]["model"]
    versions = world.client.request("GET", f"/models/{model['name']}/versions")["items"]
    assert [(v["version"], v["job_id"]) for v in versions] == [(model["version"], best)]


def _fields(sweep: dict[str, list[dict[str, dict[str, float]]]]) -> list[dict[str, float]]:
    return [run["fields"] for run in sweep["runs"]]
