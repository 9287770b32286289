"""The sample's way with its real model: uploaded rows, a job, a model that answers better."""

from pathlib import Path

import pytest

from tests.e2e.harness import SETTINGS, running_stack
from tests.real.shop import HELD_OUT, TRAIN, conversations
from tests.trainer_core.small_tasks import write_rows

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 12


def test_smollm2_learns_the_answers_of_a_shop_as_a_job(smollm2: Path, tmp_path: Path):
    """A third of the held-out answers' loss is gone after twelve steps; a model is published."""
    sources = {}
    with running_stack(tmp_path / "home", smollm2, tmp_path, SETTINGS) as world:
        for name in (TRAIN, HELD_OUT):
            path = write_rows(tmp_path / f"{name}.jsonl", conversations(name))
            sources[name] = [{"source": "dataset", "path": world.client.upload(path, name)["id"]}]
        spec = {
            "task": {"type": "sft", "loss_on": "assistant", "max_length": 128},
            "model": {"source": "folder", "name_or_path": str(smollm2)},
            "data": {"train": sources[TRAIN], "validation": sources[HELD_OUT]},
            "training": {
                "max_steps": STEPS,
                "learning_rate": 1e-3,
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 1,
            },
            "adapter": {"type": "lora", "r": 8, "lora_alpha": 16, "lora_dropout": 0},
            "evaluation": {"compare_base": True},
        }
        job = str(world.client.submit(spec)["id"])
        world.until(job, "succeeded", timeout=240)
        measured = [e["data"] for e in world.events(job) if "eval_loss" in e["data"]]
        published = {a["path"] for a in world.client.artifacts(job) if a["kind"] == "model"}
    assert (measured[0]["step"], measured[-1]["step"]) == (0, STEPS)
    assert measured[-1]["eval_loss"] <= measured[0]["eval_loss"] * 2 / 3
    assert any(path.endswith("adapter_model.safetensors") for path in published)
