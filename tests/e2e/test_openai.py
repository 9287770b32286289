"""The official client, unchanged, against the running stack: files, jobs, events, checkpoints."""

import json
import re
import runpy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.fine_tuning import (
    DpoMethodParam,
    FineTuningJob,
    FineTuningJobEvent,
    SupervisedHyperparametersParam,
)

from tests.e2e.harness import World
from tests.services import ROOT, wait_until

pytestmark = pytest.mark.train
OVER = ("succeeded", "failed", "cancelled")
SMALL = {"task": {"max_length": 64}}


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[openai.OpenAI]:
    key = world.client.key
    with openai.OpenAI(base_url=f"{world.client.url}/v1", api_key=key) as made:
        yield made


def until(client: openai.OpenAI, job_id: str, *states: str) -> FineTuningJob:
    def reached() -> FineTuningJob | None:
        job = client.fine_tuning.jobs.retrieve(job_id)
        if job.status in OVER and job.status not in states:
            raise AssertionError(f"{job.status}: {job.error}")
        return job if job.status in states else None

    return wait_until(reached, timeout=90, every=0.1)


HYPERPARAMETERS: SupervisedHyperparametersParam = {
    "n_epochs": 2,
    "batch_size": 4,
    "learning_rate_multiplier": 2.0,
}


@pytest.fixture(scope="module")
def done(world: World, client: openai.OpenAI) -> FineTuningJob:
    """A job that was made and followed to its end: 8 rows, 4 a step, twice."""
    rows = client.files.create(file=world.data / "few.jsonl", purpose="fine-tune")
    client.files.wait_for_processing(rows.id)
    job = client.fine_tuning.jobs.create(
        model=str(world.model),
        training_file=rows.id,
        validation_file=rows.id,
        method={"type": "supervised", "supervised": {"hyperparameters": HYPERPARAMETERS}},
        suffix="shop",
        seed=7,
        extra_body={"polar": SMALL},
    )
    return until(client, job.id, "succeeded")


def measured(events: Iterable[FineTuningJobEvent]) -> list[dict[str, Any]]:
    """What was measured; the client has no type for it."""
    found = (event.data for event in events if event.type == "metrics")
    return [data for data in found if isinstance(data, dict)]


def test_a_job_that_is_done(world: World, client: openai.OpenAI, done: FineTuningJob) -> None:
    jobs = client.fine_tuning.jobs
    assert done.hyperparameters.to_dict() == HYPERPARAMETERS
    assert done.fine_tuned_model
    assert done.trained_tokens
    assert done.finished_at
    name, _, version = done.fine_tuned_model.partition(":")
    assert world.client.request("GET", f"/models/{name}/versions/{version}")["base_model"]
    told = list(jobs.list_events(done.id, limit=5))
    assert told[0].message == "The job has successfully completed"
    steps = [data["step"] for data in measured(told) if "train_loss" in data]
    assert steps == [4, 3, 2, 1]
    newest = jobs.checkpoints.list(done.id).data[0]
    assert newest.step_number == newest.metrics.step == 4
    assert newest.metrics.train_loss
    assert newest.metrics.full_valid_loss
    lines = client.files.content(done.result_files[0]).text.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["step", "1", "2", "3", "4"]


def pair(number: int) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": f"Where is order {number}?"}]}
    good, bad = ([{"role": "assistant", "content": text}] for text in ("It was sent.", "No idea."))
    return {"input": asked, "preferred_output": good, "non_preferred_output": bad}


def test_its_model_and_its_checkpoint_learn_preferences(
    client: openai.OpenAI, done: FineTuningJob
) -> None:
    jobs = client.fine_tuning.jobs
    content = "".join(json.dumps(pair(n)) + "\n" for n in range(4))
    pairs = client.files.create(file=("pairs.jsonl", content.encode()), purpose="fine-tune")
    kept = jobs.checkpoints.list(done.id).data[0].fine_tuned_model_checkpoint
    dpo: DpoMethodParam = {"hyperparameters": {"beta": 0.2, "batch_size": 2, "n_epochs": 1}}
    onward = [
        jobs.create(
            model=model,
            training_file=pairs.id,
            method={"type": "dpo", "dpo": dpo},
            extra_body={"polar": SMALL},
        )
        for model in (str(done.fine_tuned_model), kept)
    ]
    assert [job.model for job in onward] == [done.fine_tuned_model, kept]
    for job in onward:
        until(client, job.id, "succeeded")


def test_pause_resume_and_cancel_while_it_trains(world: World, client: openai.OpenAI) -> None:
    jobs = client.fine_tuning.jobs
    rows = client.files.create(file=world.data / "rows.jsonl", purpose="fine-tune")
    job = jobs.create(
        model=str(world.model),
        training_file=rows.id,
        hyperparameters={"n_epochs": 5000, "batch_size": 2},
        metadata={"case": "pause"},
        extra_body={"polar": SMALL},
    )
    until(client, job.id, "running")

    def newest_step() -> int:
        data = measured(jobs.list_events(job.id, limit=50).data)
        return max((each["step"] for each in data), default=0)

    wait_until(newest_step, timeout=60)
    jobs.pause(job.id)
    until(client, job.id, "paused")
    reached = jobs.checkpoints.list(job.id).data[0].step_number
    jobs.resume(job.id)
    until(client, job.id, "running")

    wait_until(lambda: newest_step() > reached, timeout=60)
    [listed] = list(jobs.list(metadata={"case": "pause"}))
    assert listed.id == job.id
    jobs.cancel(job.id)
    assert until(client, job.id, "cancelled").fine_tuned_model is None
    with pytest.raises(openai.BadRequestError) as over:
        jobs.resume(job.id)
    assert over.value.code == "job_finished"
    with pytest.raises(openai.NotFoundError):
        jobs.retrieve("ftjob-nothing")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-other").files.list()


def test_the_snippet_of_the_docs_runs(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs" / "openai.md").read_text()
    [snippet] = re.findall(r"<!-- snippet -->\n```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.setenv("POLAR_URL", world.client.url)
    monkeypatch.setenv("POLAR_API_KEY", str(world.client.key))
    monkeypatch.chdir(ROOT)
    model = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert snippet.count(model) == 1
    program = tmp_path / "snippet.py"
    program.write_text(snippet.replace(model, str(world.model)))
    runpy.run_path(str(program))
    assert "succeeded ft-tiny-shop:" in capsys.readouterr().out
