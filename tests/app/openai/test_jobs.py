"""`/v1/fine_tuning/jobs` with the official client: what requests become, how jobs are told."""

from collections.abc import Iterator
from typing import Any, ClassVar

import httpx
import openai
import pytest
from openai.types.fine_tuning import DpoHyperparametersParam
from sqlalchemy.orm import Session

from app.jobs.lifecycle import Change, FailureReason, Status, transition
from app.registry.service import create_version
from tests.app.openai.client import client_of, upload
from tests.app.server import Api
from tests.app.stored import new_version
from tests.app.streams import append

MODEL = "org/tiny-1M"


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[openai.OpenAI]:
    with client_of(api) as made:
        yield made


@pytest.fixture(scope="module")
def file(client: openai.OpenAI) -> str:
    return upload(client)


def spec_of(api: Api, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = api.client.get(f"/jobs/job_{job_id.removeprefix('ftjob-')}").json()
    return found


def test_a_job_of_the_least_is_one_of_the_usual_values(
    api: Api, client: openai.OpenAI, file: str
) -> None:
    job = client.fine_tuning.jobs.create(model=MODEL, training_file=file)
    assert (job.object, job.status, job.model) == ("fine_tuning.job", "validating_files", MODEL)
    assert (job.training_file, job.validation_file) == (file, None)
    assert (job.fine_tuned_model, job.finished_at, job.error) == (None, None, None)
    assert (job.result_files, job.metadata, job.seed) == ([], {}, 42)
    assert job.method is not None
    assert job.method.type == "supervised"
    assert job.hyperparameters.n_epochs == 3  # what `sft` has by default
    assert job.hyperparameters.learning_rate_multiplier == 1
    assert job.hyperparameters.batch_size == "auto"  # no host is online to say what fits
    own = spec_of(api, job.id)
    assert own["spec"] == {
        "name": "ft-tiny-1M",
        "task": {"type": "sft"},
        "model": {"source": "hub", "name_or_path": MODEL},
        "data": {"train": [{"source": "dataset", "path": f"ds_{file.removeprefix('file-')}"}]},
        "publish": {"name": "ft-tiny-1M"},
    }
    assert client.fine_tuning.jobs.retrieve(job.id) == job
    assert client.fine_tuning.jobs.retrieve(own["id"]) == job


def test_every_parameter_gets_to_the_spec(api: Api, client: openai.OpenAI, file: str) -> None:
    asked: DpoHyperparametersParam = {
        "n_epochs": 2,
        "batch_size": 6,
        "learning_rate_multiplier": 0.5,
        "beta": 0.3,
    }
    job = client.fine_tuning.jobs.create(
        model=MODEL,
        training_file=file,
        validation_file=file,
        method={"type": "dpo", "dpo": {"hyperparameters": asked}},
        suffix="shop.v1",
        seed=7,
        metadata={"team": "search", "k" * 64: "x" * 512},
        extra_body={"polar": {"adapter": {"type": "lora", "r": 4}, "priority": 3}},
    )
    assert job.seed == 7
    assert job.metadata == {"team": "search", "k" * 64: "x" * 512}
    assert job.validation_file == file
    assert job.method is not None
    assert job.method.dpo is not None
    assert job.method.dpo.hyperparameters is not None
    assert job.method.dpo.hyperparameters.to_dict() == asked
    own = spec_of(api, job.id)
    assert own["name"] == own["spec"]["publish"]["name"] == "ft-tiny-1M-shop.v1"
    assert own["priority"] == 3
    training = own["resolved"]["training"]
    assert training["learning_rate"] == pytest.approx(0.5 * 5e-6)  # half of that of adapters
    rows, rounds = (
        training["per_device_train_batch_size"],
        training["gradient_accumulation_steps"],
    )
    assert rows * rounds == 6
    assert own["labels"]["openai/team"] == "search"


def test_the_older_spelling_of_hyperparameters(client: openai.OpenAI, file: str) -> None:
    job = client.fine_tuning.jobs.create(
        model=MODEL, training_file=file, hyperparameters={"n_epochs": 5, "batch_size": "auto"}
    )
    assert job.hyperparameters.n_epochs == 5


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"training_file": "file-nothing"}, "training_file", "there is no data set file-nothing"),
    ({"validation_file": "file-nothing"}, "validation_file", "there is no data set"),
    ({"model": "/etc"}, "model", "folders are not open here"),
    ({"model": "../up"}, "model", ""),
    ({"model": "no-model:3"}, "model", "there is no model no-model"),
    ({"model": f"ftjob-{'0' * 26}:ckpt-step-3"}, "model", "keeps no checkpoint of step 3"),
    ({"model": "s3://theirs/model/"}, "model", "is not open to jobs here"),
    ({"suffix": "my model"}, "suffix", ""),
    ({"suffix": "x" * 65}, "suffix", "64"),
    ({"seed": -1}, "seed", ""),
    ({"metadata": {f"k{n}": "" for n in range(17)}}, "metadata", "16"),
    ({"metadata": {"a key": ""}}, "metadata", "a key"),
    ({"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]}, "integrations", "Weights"),
    ({"method": {"type": "reinforcement"}}, "method.type", "grpo"),
    ({"method": {"type": "supervised", "dpo": {}}}, "method.dpo", "take the block of 'dpo' out"),
    ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"bta": 1}}}}, "", "beta"),
    (
        {"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": -1}}}},
        "method.dpo.hyperparameters.beta",
        "",
    ),
    ({"method": {"type": "dpo"}, "hyperparameters": {"n_epochs": 1}}, "hyperparameters", "one"),
    (
        {"hyperparameters": {"n_epochs": 9999, "batch_size": 10**6}},
        "hyperparameters.batch_size",
        "",
    ),
    (
        {"hyperparameters": {"batch_size": 4}, "extra_body": {"polar": {"training": "x"}}},
        "polar.training",
        "must be an object",
    ),
    ({"extra_body": {"sufix": "x"}}, "sufix", "suffix"),
    ({"extra_body": {"polar": {"adapter": {"type": "lora", "rr": 4}}}}, "polar.adapter.rr", "r"),
    ({"extra_body": {"polar": {"task": {"type": "clm"}}}}, "polar.task.type", "to POST /jobs"),
    ({"extra_body": {"polar": {"compute": {"target": "fake"}}}}, "polar.compute.target", "drills"),
]


@pytest.mark.parametrize(("change", "param", "message"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_is_refused_has_its_parameter(
    client: openai.OpenAI, file: str, change: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.fine_tuning.jobs.create(**{"model": MODEL, "training_file": file, **change})
    assert message in refused.value.message
    assert refused.value.type == "invalid_request_error"
    assert refused.value.param == param or (not param and "beta" in refused.value.message)


def test_changes_at_the_other_door_break_nothing(
    api: Api, client: openai.OpenAI, file: str
) -> None:
    job = client.fine_tuning.jobs.create(model=MODEL, training_file=file, metadata={"a": "b"})
    own = f"/jobs/job_{job.id.removeprefix('ftjob-')}"
    assert api.client.patch(own, json={"name": "x", "labels": {"team": "y"}}).status_code == 200
    after = client.fine_tuning.jobs.retrieve(job.id)
    assert after == job.model_copy(update={"metadata": {}})


def test_a_key_makes_a_create_safe_to_repeat(client: openai.OpenAI, file: str) -> None:
    once = {"Idempotency-Key": f"once-{file}"}
    made = [
        client.fine_tuning.jobs.create(model=MODEL, training_file=file, extra_headers=once).id
        for _ in range(2)
    ]
    assert made[0] == made[1]
    with pytest.raises(openai.BadRequestError) as other:
        client.fine_tuning.jobs.create(model="org/x", training_file=file, extra_headers=once)
    assert other.value.code == "idempotency_mismatch"


class Lossy(httpx.HTTPTransport):
    """Loses the answer to its first request, which has arrived."""

    counts: ClassVar[list[str]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        self.counts.append(request.headers["X-Stainless-Retry-Count"])
        if len(self.counts) == 1:
            answer.read()
            raise httpx.ReadError("the connection broke")
        return answer


def test_an_answer_that_was_lost_makes_no_second_job(api: Api, file: str) -> None:
    """The official client tries again by itself, without a key."""
    Lossy.counts.clear()
    asked: dict[str, Any] = {"model": MODEL, "training_file": file, "suffix": "lossy"}
    with client_of(api).with_options(http_client=httpx.Client(transport=Lossy())) as client:
        first = client.fine_tuning.jobs.create(**asked)
        assert Lossy.counts == ["0", "1"]
        listed = client.fine_tuning.jobs.list(limit=2).data
        assert [job.id for job in listed if "lossy" in spec_of(api, job.id)["name"]] == [first.id]
        # who asks anew gets a new one, and so does whose job came to nothing
        second = client.fine_tuning.jobs.create(**asked)
        for job in (first, second):
            client.fine_tuning.jobs.cancel(job.id)
        again = {"X-Stainless-Retry-Count": "2"}
        third = client.fine_tuning.jobs.create(**asked, extra_headers=again)
    assert len({first.id, second.id, third.id}) == 3


def test_jobs_are_paged_and_found_by_metadata(api: Api, client: openai.OpenAI, file: str) -> None:
    run = f"run {file}"
    made = [
        client.fine_tuning.jobs.create(
            model=MODEL, training_file=file, metadata={"run": run, "n": str(n)}
        ).id
        for n in range(3)
    ]
    first = client.fine_tuning.jobs.list(limit=2, metadata={"run": run})
    assert [job.id for job in first.data] == made[:0:-1]
    assert first.has_more
    assert [job.id for job in client.fine_tuning.jobs.list(limit=2, metadata={"run": run})] == (
        made[::-1]
    )
    [one] = client.fine_tuning.jobs.list(metadata={"run": run, "n": "1"}).data
    assert one.id == made[1]
    none = client.fine_tuning.jobs.list(limit=100, extra_query={"metadata": "null"})
    assert all(not job.metadata for job in none)
    with pytest.raises(openai.BadRequestError) as unknown:
        client.fine_tuning.jobs.list(extra_query={"limt": 2})
    assert unknown.value.param == "limt"
    assert "`limit`" in unknown.value.message
    [page] = [api.client.get("/v1/fine_tuning/jobs", params={"limit": 1}).json()]
    assert page["object"] == "list"
    assert page["first_id"] == page["last_id"] == page["data"][0]["id"]


def test_jobs_of_the_other_door_are_seen_and_other_tasks_told(
    api: Api, client: openai.OpenAI
) -> None:
    spec: dict[str, Any] = {
        "task": {"type": "sft"},
        "model": {"name_or_path": MODEL},
        "data": {"train": [{"source": "hub", "path": "org/rows"}]},
    }
    own = api.client.post("/jobs", json=spec).json()["id"]
    job = client.fine_tuning.jobs.retrieve(own)
    assert (job.id, job.training_file) == (f"ftjob-{own.removeprefix('job_')}", "org/rows")
    other = api.client.post("/jobs", json={**spec, "task": {"type": "clm"}}).json()["id"]
    with pytest.raises(openai.NotFoundError) as absent:
        client.fine_tuning.jobs.retrieve(other)
    assert f"GET /jobs/{other} shows it" in absent.value.message
    assert other[4:] not in {job.id[6:] for job in client.fine_tuning.jobs.list(limit=20).data}


def test_cancel_pause_and_resume(client: openai.OpenAI, file: str) -> None:
    jobs = client.fine_tuning.jobs
    job = jobs.create(model=MODEL, training_file=file)
    assert jobs.pause(job.id).status == "paused"
    assert jobs.pause(job.id).status == "paused"
    assert jobs.resume(job.id).status == "validating_files"
    cancelled = jobs.cancel(job.id)
    assert cancelled.status == "cancelled"
    assert cancelled.finished_at is not None
    assert cancelled.error is None
    with pytest.raises(openai.BadRequestError) as over:
        jobs.pause(job.id)
    assert over.value.code == "job_finished"
    with pytest.raises(openai.NotFoundError):
        jobs.cancel("ftjob-nothing")


def finished(api: Api, client: openai.OpenAI, file: str) -> str:
    """A job that trained four steps, kept two checkpoints and published a model."""
    job = client.fine_tuning.jobs.create(model=MODEL, training_file=file, suffix="done").id
    own = f"job_{job.removeprefix('ftjob-')}"
    with Session(api.engine) as session, session.begin():
        transition(session, own, Status.PROVISIONING)
        transition(session, own, Status.RUNNING, Change(phase="training"))
    measured: list[tuple[str, dict[str, Any]]] = [
        ("metrics", {"step": n, "loss": 4.0 - n, "mean_token_accuracy": n / 10})
        for n in range(1, 5)
    ]
    measured.insert(2, ("metrics", {"step": 2, "eval_loss": 2.5}))
    append(api, own, measured)
    api.write(
        "INSERT INTO attempts (id, project_id, job_id, number, target, nonce, outcome, finished_at,"
        " released_at)"
        " VALUES (:id, 'prj_default', :job, 1, 'local', 'n', 'succeeded', now(), now())",
        id=f"att_{own[4:]}",
        job=own,
    )
    for number, step in enumerate((2, 4)):
        api.write(
            "INSERT INTO checkpoints (id, project_id, job_id, attempt_id, step, prefix,"
            " manifest_sha256, size) VALUES (:id, 'prj_default', :job, :attempt, :step, :prefix,"
            " 'f', 1)",
            id=f"ckp_{own[4:-1]}{number}",
            job=own,
            attempt=f"att_{own[4:]}",
            step=step,
            prefix=f"prj_default/jobs/{own}/att/checkpoints/step-{step:08d}/",
        )
    api.write(
        "UPDATE preparations SET report = '{\"total_tokens\": 100}' WHERE job_id = :id", id=own
    )
    api.write("UPDATE jobs SET progress = '{\"epoch\": 2.5}' WHERE id = :id", id=own)
    with Session(api.engine) as session, session.begin():
        create_version(session, new_version("ft-tiny-1M-done", own))
        transition(session, own, Status.FINALIZING)
        transition(session, own, Status.SUCCEEDED)
    return job


def test_what_a_finished_job_leaves(api: Api, client: openai.OpenAI, file: str) -> None:
    jobs = client.fine_tuning.jobs
    job = jobs.retrieve(finished(api, client, file))
    assert (job.status, job.trained_tokens) == ("succeeded", 250)
    assert job.fine_tuned_model is not None
    name, _, version = job.fine_tuned_model.partition(":")
    listed = api.client.get(f"/models/{name}/versions").json()["items"]
    assert int(version) in [each["version"] for each in listed]
    newest, first = jobs.checkpoints.list(job.id).data
    assert (newest.step_number, first.step_number) == (4, 2)
    assert newest.fine_tuning_job_id == job.id
    assert first.metrics.to_dict() == {
        "step": 2,
        "train_loss": 2.0,
        "train_mean_token_accuracy": 0.2,
        "valid_loss": 2.5,
        "full_valid_loss": 2.5,
        "valid_mean_token_accuracy": None,
        "full_valid_mean_token_accuracy": None,
    }
    assert [c.id for c in jobs.checkpoints.list(job.id, limit=1)] == [newest.id, first.id]
    [results] = job.result_files
    told = client.files.retrieve(results)
    content = client.files.content(results).text
    assert (told.purpose, told.bytes) == ("fine-tune-results", len(content))
    assert content.splitlines() == [
        "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy",
        "1,3.0,0.1,,",
        "2,2.0,0.2,2.5,",
        "3,1.0,0.3,,",
        "4,0.0,0.4,,",
    ]
    with pytest.raises(openai.BadRequestError):
        client.files.delete(results)


def test_a_published_model_and_a_checkpoint_start_the_next_job(
    api: Api, client: openai.OpenAI, file: str
) -> None:
    jobs = client.fine_tuning.jobs
    before = jobs.retrieve(finished(api, client, file))
    assert before.fine_tuned_model is not None
    after = jobs.create(model=before.fine_tuned_model, training_file=file, suffix="next")
    assert after.model == before.fine_tuned_model
    name, _, version = before.fine_tuned_model.partition(":")
    own = spec_of(api, after.id)
    assert own["spec"]["model"] == {
        "source": "registry",
        "name_or_path": name,
        "revision": version,
    }
    assert own["name"] == "ft-tiny-1M-done-next"
    kept = jobs.checkpoints.list(before.id).data[0].fine_tuned_model_checkpoint
    onward = jobs.create(model=kept, training_file=file)
    assert onward.model == kept


def test_events_come_newest_first_and_page_by_page(
    api: Api, client: openai.OpenAI, file: str
) -> None:
    job = finished(api, client, file)
    events = list(client.fine_tuning.jobs.list_events(job, limit=3))
    assert len({event.id for event in events}) == len(events) == 10
    assert events[0].message == "The job has successfully completed"
    assert events[-1].message == "Validating files"
    measured = [event for event in events if event.type == "metrics"]
    assert measured[0].message == "Step 4: training loss=0"
    assert measured[-1].data == {"step": 1, "train_loss": 3.0, "train_mean_token_accuracy": 0.1}
    for after in ("ftevent-x", f"ftevent-{'0' * 26}-5"):
        with pytest.raises(openai.BadRequestError) as refused:
            client.fine_tuning.jobs.list_events(job, after=after)
        assert (refused.value.param, refused.value.code) == ("after", "invalid_cursor")
    with pytest.raises(openai.NotFoundError):
        client.fine_tuning.jobs.retrieve(f"{job}\n")


def test_a_failure_is_told_with_its_parameter(api: Api, client: openai.OpenAI, file: str) -> None:
    job = client.fine_tuning.jobs.create(model=MODEL, training_file=file)
    change = Change(reason=FailureReason.INVALID_DATA, message="rows.jsonl line 1 is too long")
    with Session(api.engine) as session, session.begin():
        transition(session, f"job_{job.id.removeprefix('ftjob-')}", Status.FAILED, change)
    failed = client.fine_tuning.jobs.retrieve(job.id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert (failed.error.code, failed.error.param) == ("invalid_data", "training_file")
    assert failed.error.message == change.message
    newest = client.fine_tuning.jobs.list_events(job.id, limit=1).data[0]
    assert (newest.level, newest.message) == ("error", f"The job has failed: {change.message}")


def test_a_job_of_an_older_version_hides_no_other(
    api: Api, client: openai.OpenAI, file: str
) -> None:
    """Its stored spec lacks blocks: the page shows it without them."""
    older = client.fine_tuning.jobs.create(model=MODEL, training_file=file)
    key = f"job_{older.id.removeprefix('ftjob-')}"
    api.write("UPDATE jobs SET resolved = '{}' WHERE id = :id", id=key)
    newer = client.fine_tuning.jobs.create(model=MODEL, training_file=file)
    found = {job.id: job for job in client.fine_tuning.jobs.list(limit=2).data}
    assert found.keys() == {older.id, newer.id}
    assert (found[older.id].training_file, found[older.id].hyperparameters.n_epochs) == ("", "auto")
