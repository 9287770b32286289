"""A job goes the whole way: submitted, hinted, prepared, placed, trained, published, mirrored."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from polar.manifest import verify
from tests.e2e.harness import World
from tests.services import wait_until

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def finished(world: World) -> tuple[dict[str, Any], list[Any]]:
    """A succeeded job with validation data, and every frame of its stream."""
    job_id = world.submit(
        steps=12,
        data={"validation": [{"source": "folder", "path": str(world.data / "few.jsonl")}]},
    )
    frames = list(world.client.events(job_id))
    job = world.get(job_id)
    assert job["status"] == "succeeded", job
    return job, frames


def test_the_stream_tells_every_phase_a_falling_loss_and_the_end(finished: Any):
    _, frames = finished
    phases = [f.data.get("phase") for f in frames if f.type == "status"]
    assert list(dict.fromkeys(filter(None, phases))) == [
        "preparing",
        "loading",
        "training",
        "evaluating",
        "publishing",
    ]
    statuses = [f.data.get("status") for f in frames if f.type == "status"]
    assert list(dict.fromkeys(statuses)) == [
        "queued",
        "provisioning",
        "running",
        "finalizing",
        "succeeded",
    ]
    losses = [f.data["loss"] for f in frames if f.type == "metrics" and "loss" in f.data]
    assert len(losses) == 12
    assert losses[-1] < losses[0]
    assert any("eval_loss" in f.data for f in frames if f.type == "metrics")
    ids = [f.seq for f in frames if f.seq is not None]
    assert ids == list(range(1, len(ids) + 1))
    assert (frames[-1].type, frames[-1].id) == ("end", None)
    assert frames[-1].body["status"] == "succeeded"
    assert frames[-1].body["last_seq"] == ids[-1]


def test_the_published_model_is_what_its_manifest_says(world: World, finished: Any, tmp_path: Path):
    job, _ = finished
    listed = world.client.artifacts(job["id"])
    models = [a["path"] for a in listed if a["kind"] == "model"]
    root = next(path for path in models if path.endswith("manifest.json"))
    folder = root.removesuffix("manifest.json")
    for path in models:
        world.client.download(job["id"], path, tmp_path / path.removeprefix(folder))
    assert verify(tmp_path) == len(models) - 1
    names = {path.removeprefix(folder) for path in models}
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md", "run_lock.json"} <= (
        names
    )


def test_mlflow_has_the_finished_run_with_the_same_losses(world: World, finished: Any):
    job, _ = finished
    url = world.state.processes["mlflow"].address

    def ask(call: str, **parameters: Any) -> Any:
        answer = httpx.get(f"{url}/api/2.0/mlflow/{call}", params=parameters, trust_env=False)
        return answer.raise_for_status().json()

    reference = wait_until(
        lambda: (world.get(job["id"])["external_refs"]["mlflow"] or {}).get("run_id"), timeout=240
    )
    wait_until(
        lambda: ask("runs/get", run_id=reference)["run"]["info"]["status"] == "FINISHED",
        timeout=60,
    )
    points = ask("metrics/get-history", run_id=reference, metric_key="loss")["metrics"]
    assert {p["step"]: p["value"] for p in points} == world.losses(job["id"])
    found = ask("model-versions/search", filter=f"run_id = '{reference}'")
    assert [v["source"].startswith("s3://polar/") for v in found["model_versions"]] == [True]
    files = ask("artifacts/list", run_id=reference, path="model")["files"]
    assert "model/README.md" in [f["path"] for f in files]


def test_nothing_runs_on_after_the_end(world: World, finished: Any):
    job, _ = finished
    wait_until(lambda: not world.leftovers(job["id"]), timeout=20)
    assert all(a["released_at"] for a in world.get(job["id"])["attempts"])


def test_b10_hints_that_come_twice_or_never_change_nothing(world: World):
    with world.frozen("worker"):
        job_id = world.submit()
        world.until(job_id, "provisioning")
        attempt = world.get(job_id)["attempts"][0]["id"]
        for _ in range(5):
            world.sql(
                "INSERT INTO outbox (project_id, queue, handler, args)"
                " VALUES ('prj_default', 'host.local', 'run', jsonb_build_array(%s::text))",
                attempt,
            )
        wait_until(lambda: world.sql("SELECT count(*) FROM outbox") == [(0,)])
    world.until(job_id, "succeeded")
    assert len(world.get(job_id)["attempts"]) == 1
    results = [e for e in world.events(job_id) if e["type"] == "attempt"]
    assert [e["data"]["event"] for e in results] == ["provisioned"]
