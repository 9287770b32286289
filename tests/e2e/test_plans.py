"""A plan through the whole service: estimated, exact, pinned, and its data tokenised once."""

import json
from pathlib import Path

import pytest

from tests.e2e.harness import World

pytestmark = pytest.mark.train


def test_what_is_planned_is_what_is_run(world: World, tmp_path: Path) -> None:
    """Steps and trained tokens are the run's own; one folder of prepared data, made once."""
    dataset = world.client.upload(world.data / "rows.jsonl")
    spec = world.spec(data={"train": [{"source": "dataset", "path": dataset["id"]}]})
    spec["training"] = spec["training"] | {"num_train_epochs": 1}
    del spec["training"]["max_steps"]
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    first = world.client.plan(spec)
    plan = json.loads(world.polar("plan", str(path), "--exact", "--json"))
    assert plan["id"] == first["id"]
    assert plan["exact"], plan
    figures = plan["figures"]
    bounds = ((first["figures"] or {}).get("bounds") or {}).get("steps")
    if bounds is not None:  # the first answer was the estimate, as it is on a host with time
        assert bounds["low"] <= figures["steps"]["total"] <= bounds["high"]
    made = world.sql("SELECT key FROM plans WHERE id = %s", plan["id"])[0][0]
    written = (world.home.path / "prepared" / made / "manifest.json").stat()
    job = world.client.submit({**spec, "plan_id": plan["id"]})
    world.until(job["id"], "succeeded")
    [(key, report)] = world.sql(
        "SELECT j.prepared_key, p.report FROM jobs j JOIN preparations p ON p.job_id = j.id"
        " WHERE j.id = %s",
        job["id"],
    )
    assert key == made
    assert (
        world.home.path / "prepared" / made / "manifest.json"
    ).stat().st_mtime_ns == written.st_mtime_ns
    assert max(world.losses(job["id"])) == figures["steps"]["total"]
    trained, total = report["trained_tokens"], report["total_tokens"]
    assert figures["tokens"]["trained_share"] == pytest.approx(trained / total)
    [machine] = world.client.request("GET", f"/plans/{plan['id']}")["machines"]
    assert machine["cost_usd"] == 0
    assert "⟦" in world.polar("preview", str(path), "-n", "2")
