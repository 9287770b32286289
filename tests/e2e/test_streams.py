"""Jobs on streams: an uploaded data set and an object of the store, read as far as the run goes."""

import re

import pytest

from tests.e2e.harness import Json, World
from tests.trainer_core.small_tasks import documents, write_rows

pytestmark = pytest.mark.train
STEPS, ROWS_OF_A_STEP = 24, 16
TASKS: dict[str, Json] = {
    "clm": {"type": "clm", "max_length": 64, "packing": "none"},
    "sft": {"type": "sft", "loss_on": "all", "max_length": 256},
}


@pytest.fixture(scope="module")
def uploaded(world: World) -> Json:
    """More rows than any of these runs takes."""
    path = write_rows(world.data / "stream.jsonl", documents(4000))
    held = write_rows(world.data / "stream-held.jsonl", documents(12, seed=1))
    return {
        "stream": world.client.upload(path, "stream"),
        "held": world.client.upload(held, "stream-held"),
    }


@pytest.mark.sampled
@pytest.mark.parametrize(("task", "place"), [("clm", "s3"), ("sft", "dataset")])
def test_a_job_on_a_stream(world: World, uploaded: Json, task: str, place: str) -> None:
    """A tenth of the held-out loss is gone; of 4000 rows as many are prepared as 24 steps take, and
    no copy of their file is fetched."""
    stream, held = uploaded["stream"]["id"], uploaded["held"]["id"]
    path = stream if place == "dataset" else f"s3://polar/{_location(world, stream)}"
    spec = world.spec(steps=STEPS)
    spec |= {
        "task": TASKS[task],
        "data": {
            "train": [{"source": place, "path": path}],
            "validation": [{"source": "dataset", "path": held}],
            "streaming": True,
            "over_length": "truncate_right",
        },
        "evaluation": {"compare_base": True},
    }
    del spec["adapter"]
    spec["training"]["per_device_train_batch_size"] = ROWS_OF_A_STEP
    job = str(world.client.submit(spec)["id"])
    world.until(job, "succeeded", timeout=180)
    losses = world.losses(job)
    assert set(losses) == set(range(1, STEPS + 1))
    measured = [e["data"]["eval_loss"] for e in world.events(job) if "eval_loss" in e["data"]]
    assert measured[-1] <= 0.9 * measured[0]  # of rows that are in no stream
    [(report,)] = world.sql("SELECT report FROM preparations WHERE job_id = %s", job)
    assert report["train_rows"] == STEPS * ROWS_OF_A_STEP
    assert not [p for p in (world.home.path / "cache").rglob("*") if p.name == "stream.jsonl"]
    told = (world.home.path / "logs" / "supervisors" / f"{job}.log").read_text()
    assert re.search(r"\d+ bytes of objects were read", told)


def _location(world: World, dataset: str) -> str:
    [(location,)] = world.sql("SELECT location FROM datasets WHERE id = %s", dataset)
    return str(location)
