"""Task `evaluation` through the service: a published model, measured against its base."""

import json
from pathlib import Path

import pytest

from tests.e2e.harness import World
from tests.trainer_core.small_tasks import documents, write_rows

pytestmark = pytest.mark.train


def test_a_published_model_is_measured(world: World, tmp_path: Path) -> None:
    """The model of one job is what the next one measures; a report is kept, no model is made, and
    a gate keeps another job's model out of the registry."""
    path = write_rows(world.data / "measured.jsonl", documents(40))
    data = {
        "train": [{"source": "folder", "path": str(path)}],
        "validation": {"split_ratio": 0.25},
    }
    of = {"type": "clm", "max_length": 64}
    spec = world.spec(steps=12, task=of)
    spec |= {"data": data, "publish": {"name": "measured"}, "evaluation": {"compare_base": True}}
    del spec["adapter"]
    spec["training"] |= {"learning_rate": 0.01}
    trained = str(world.client.submit(spec)["id"])
    world.until(trained, "succeeded", timeout=180)
    told = _report(world, trained, tmp_path / "trained.json")

    job = world.client.submit(
        {
            "task": {"type": "evaluation", "of": of, "baseline": spec["model"]},
            "model": {"source": "registry", "name_or_path": "measured"},
            "data": data,
        }
    )
    measured = str(job["id"])
    world.until(measured, "succeeded", timeout=180)
    report = _report(world, measured, tmp_path / "measured.json")
    for name, found in told["metrics"].items():
        assert report["metrics"][name]["value"] == pytest.approx(found["value"], rel=1e-4)
        assert report["metrics"][name]["base"] == pytest.approx(found["base"], rel=1e-4)
    kinds = {artifact["kind"] for artifact in world.client.artifacts(measured)}
    assert kinds == {"report", "ledger"}

    spec["publish"] = {"name": "kept-out", "gate": {"metric": "perplexity", "threshold": 1.0}}
    refused = str(world.client.submit(spec)["id"])
    world.until(refused, "failed", timeout=180)
    ended = world.get(refused)
    assert (ended["reason"], ended["turn"]) == ("below_gate", "owner")
    assert "its perplexity is" in ended["message"]
    assert not [a for a in world.client.artifacts(refused) if a["kind"] == "model"]


def _report(world: World, job: str, target: Path) -> dict[str, dict[str, dict[str, float]]]:
    world.client.download(job, "evaluation/report.json", target)
    report: dict[str, dict[str, dict[str, float]]] = json.loads(target.read_text())
    return report
