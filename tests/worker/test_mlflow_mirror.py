"""The MLflow mirror against a real server: what a job was, in every ending, whatever happens."""

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from app.attempts.commits import Publication, StoredFile
from app.attempts.service import Claim, Ending, claim, commit_model, finalize, finish, ingest
from app.db import transaction
from app.jobs.lifecycle import FailureReason
from app.registry.mirror import write_next_pointer
from app.settings import Settings
from app.storage import Store
from app.tracking.client import Mlflow
from app.tracking.mirror import mirror_one
from tests.worker.conftest import forget
from tests.worker.gate import Gate, gate
from tests.worker.mlflow_server import mlflow_server
from tests.worker.world import PROJECT, add_host, add_job, one, rows, run_sql
from trainer_core.events import RunEvent
from worker.placement import place

STEPS = 5
TIME = datetime(2026, 11, 30, 10, tzinfo=UTC)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow 서버")) as url:
        yield url


class World:
    """Jobs with MLflow behind a door."""

    def __init__(self, door: Gate, objects: Store) -> None:
        self.door = door
        self.url = f"http://127.0.0.1:{door.port}"
        self.objects = objects
        self.mlflow = Mlflow(self.url)
        self.experiment = f"실험 {secrets.token_hex(4)}"
        self.tracking = {"mlflow": {"experiment": self.experiment, "run_name": None, "tags": {}}}

    def job(self, **spec: Any) -> tuple[str, Claim]:
        """A job that a host has just begun with."""
        job_id = add_job(max_attempts=1, **{"tracking": self.tracking, **spec})
        with transaction() as session:
            assert place(session, "r") == 1
        attempt = one("SELECT id FROM attempts WHERE job_id = :id", id=job_id)
        with transaction() as session:
            held = claim(session, attempt, "h1", "nonce")
        assert held is not None
        return job_id, held

    def mirror(self) -> None:
        """Carry everything that is due now, whatever the back-off says."""
        run_sql("UPDATE mlflow_runs SET next_at = now() - interval '1 s'")
        self.carry()

    def carry(self) -> None:
        """Carry what is due and not another's at the moment."""
        while mirror_one(self.mlflow, self.objects):
            pass

    def run(self, job_id: str) -> Any:
        run_id = one("SELECT run_id FROM mlflow_runs WHERE job_id = :id", id=job_id)
        return self.get("runs/get", run_id=run_id)["run"]

    def get(self, call: str, **parameters: Any) -> Any:
        answer = httpx.get(f"{self.url}/api/2.0/mlflow/{call}", params=parameters, trust_env=False)
        assert answer.is_success, answer.text
        return answer.json()

    def history(self, job_id: str, metric: str) -> list[tuple[int, float]]:
        run_id = self.run(job_id)["info"]["run_id"]
        found = self.get("metrics/get-history", run_id=run_id, metric_key=metric, max_results=5000)
        return sorted((m["step"], m["value"]) for m in found["metrics"])


@pytest.fixture
def world(
    store_settings: Settings, server: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    with gate(int(server.rpartition(":")[2])) as door:
        world = World(door, Store(store_settings))
        monkeypatch.setenv("POLAR_MLFLOW_URL", world.url)
        forget()
        add_host("h1", slots=9)
        yield world


def report(held: Claim, first: int = 1, last: int = STEPS) -> None:
    """Metrics of the steps `first` to `last`, as the trainer reports them."""
    events = [
        RunEvent(
            n=step, time=TIME, type="metrics", data={"step": step, "epoch": 0.5, "loss": 3.0 / step}
        )
        for step in range(first, last + 1)
    ]
    with transaction() as session:
        assert ingest(session, held.attempt_id, held.token, events) == len(events)


def losses(first: int = 1, last: int = STEPS) -> list[tuple[int, float]]:
    return [(step, 3.0 / step) for step in range(first, last + 1)]


def publish(world: World, held: Claim) -> str:
    """Put a model into the store and succeed; returns its prefix."""
    prefix = f"{PROJECT}/jobs/{held.job_id}/{held.attempt_id}/model/"
    contents = {"model/README.md": "# 모델\n", "model/adapter_config.json": '{"r": 8}'}
    files = []
    for path, content in contents.items():
        key = prefix + path.removeprefix("model/")
        world.objects.put_bytes(key, content.encode())
        files.append(StoredFile(path, key, "model", len(content.encode()), "0" * 64))
    files.append(StoredFile("model/model.safetensors", prefix + "m", "model", 10**9, "0" * 64))
    made = Publication(prefix, "f" * 64, files, "adapter", "org/base", metrics={"eval_loss": 1.5})
    with transaction() as session:
        assert finalize(session, held.attempt_id, held.token)
        assert commit_model(session, held.attempt_id, held.token, made)
    return prefix


def test_a_succeeded_job_becomes_a_finished_run_with_its_model(world: World):
    tracking = {
        "mlflow": {"experiment": world.experiment, "run_name": "나의 run", "tags": {"who": "me"}}
    }
    job_id, held = world.job(tracking=tracking)
    world.mirror()
    assert world.run(job_id)["info"]["status"] == "RUNNING"
    report(held)
    prefix = publish(world, held)
    world.mirror()

    run = world.run(job_id)
    finished = one("SELECT finished_at FROM jobs WHERE id = :id", id=job_id)
    assert run["info"]["status"] == "FINISHED"
    assert run["info"]["run_name"] == "나의 run"
    assert run["info"]["end_time"] == int(finished.timestamp() * 1000)
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    assert tags["polar.job_id"] == job_id
    assert tags["polar.attempts"] == "1"
    assert tags["who"] == "me"
    assert world.history(job_id, "loss") == losses()
    artifacts = world.get("artifacts/list", run_id=run["info"]["run_id"], path="model")
    assert [f["path"] for f in artifacts["files"]] == [
        "model/README.md",
        "model/adapter_config.json",
    ]
    name = one("SELECT name FROM model_versions")
    found = world.get("model-versions/search", filter=f"run_id = '{run['info']['run_id']}'")
    [version] = found["model_versions"]
    assert version["name"] == name
    assert version["source"] == f"s3://{world.objects.bucket}/{prefix.rstrip('/')}"
    assert one("SELECT closed_status FROM mlflow_runs") == "FINISHED"


def test_a33_parameters_are_flat_and_what_is_too_long_is_cut_and_named(world: World):
    job_id, _ = world.job(
        task={"type": "sft", "chat_template": "t" * 7000, "packing": True},
        training={"learning_rate": 0.0002, "max_steps": None},
    )
    world.mirror()
    run = world.run(job_id)
    params = {param["key"]: param["value"] for param in run["data"]["params"]}
    assert params["task.packing"] == "True"
    assert params["training.learning_rate"] == "0.0002"
    assert params["data.train.0.path"] == "dst_1"
    assert "training.max_steps" not in params
    # MLflow 3.17 refuses a whole batch for one parameter above 6000 characters.
    assert params["task.chat_template"] == "t" * 5999 + "…"
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    assert tags["polar.truncated_params"] == "task.chat_template"


def test_b30_a_cancelled_job_is_a_killed_run(world: World):
    job_id, held = world.job()
    report(held)
    world.mirror()
    run_sql("UPDATE jobs SET cancel_requested_at = now()")
    with transaction() as session:
        finish(
            session,
            held.attempt_id,
            held.token,
            Ending("interrupted", FailureReason.INTERRUPTED, "stopped"),
        )
    world.mirror()
    assert world.run(job_id)["info"]["status"] == "KILLED"
    assert world.history(job_id, "loss") == losses()


def test_b30_a_failed_job_is_a_failed_run_that_says_why(world: World):
    job_id, held = world.job()
    with transaction() as session:
        finish(
            session,
            held.attempt_id,
            held.token,
            Ending("failed", FailureReason.DIVERGED, "loss is not a number at step 3"),
        )
    world.mirror()
    run = world.run(job_id)
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    assert run["info"]["status"] == "FAILED"
    assert (tags["polar.reason"], tags["polar.message"]) == (
        "diverged",
        "loss is not a number at step 3",
    )


def test_a33_a_server_that_is_down_delays_the_run_and_nothing_else(world: World):
    job_id, held = world.job()
    report(held, 1, 2)
    world.mirror()
    assert world.history(job_id, "loss") == losses(1, 2)
    world.door.shut()
    report(held, 3, STEPS)
    for failures in (1, 2, 3):
        world.mirror()
        assert one("SELECT failures FROM mlflow_runs") == failures
    assert one("SELECT next_at > now() + interval '3 s' FROM mlflow_runs")  # 2**2 s
    assert one("SELECT error FROM mlflow_runs")
    publish(world, held)
    assert one("SELECT status FROM jobs") == "succeeded"
    world.mirror()
    world.door.open()
    world.mirror()
    assert world.run(job_id)["info"]["status"] == "FINISHED"
    assert world.history(job_id, "loss") == losses()
    assert rows("SELECT failures, error FROM mlflow_runs") == [(0, None)]


def test_a_mirror_that_died_half_way_makes_neither_a_second_run_nor_second_points(world: World):
    job_id, held = world.job()
    report(held)
    world.mirror()
    run_id = world.run(job_id)["info"]["run_id"]
    run_sql("UPDATE mlflow_runs SET run_id = NULL, experiment_id = NULL, synced_seq = 0")
    publish(world, held)
    world.mirror()
    assert world.run(job_id)["info"]["run_id"] == run_id
    assert world.history(job_id, "loss") == losses()
    run_sql("UPDATE mlflow_runs SET closed_status = NULL, synced_seq = 0")
    world.mirror()
    found = world.get("model-versions/search", filter=f"run_id = '{run_id}'")
    assert len(found["model_versions"]) == 1


def test_a_finished_run_is_never_downgraded(world: World):
    job_id, held = world.job()
    world.mirror()
    run_id = world.run(job_id)["info"]["run_id"]
    world.mlflow.end_run(run_id, "FINISHED", 1_800_000_000_000)
    with transaction() as session:
        ending = Ending("failed", FailureReason.TRAINER_ERROR, "broke")
        finish(session, held.attempt_id, held.token, ending)
    world.mirror()
    assert world.run(job_id)["info"]["status"] == "FINISHED"


def test_a_run_that_someone_deleted_stays_deleted(world: World):
    job_id, held = world.job()
    world.mirror()
    run_id = world.run(job_id)["info"]["run_id"]
    httpx.post(
        f"{world.url}/api/2.0/mlflow/runs/delete", json={"run_id": run_id}, trust_env=False
    ).raise_for_status()
    report(held)
    world.mirror()
    assert one("SELECT closed_status FROM mlflow_runs") == "DELETED"
    assert one("SELECT status FROM jobs WHERE id = :id", id=job_id) == "running"


def test_thousands_of_points_arrive_in_batches_that_mlflow_takes(world: World):
    job_id, held = world.job()
    report(held, 1, 2500)
    world.mirror()
    assert world.history(job_id, "loss") == losses(1, 2500)
    assert one("SELECT synced_seq FROM mlflow_runs") == one("SELECT last_seq FROM jobs")


def test_several_mirrors_share_the_runs(world: World):
    jobs = [world.job()[0] for _ in range(4)]
    world.carry()
    assert one("SELECT count(*) FROM mlflow_runs WHERE run_id IS NOT NULL") == 0  # they just began
    run_sql("UPDATE mlflow_runs SET next_at = now() - interval '1 s'")
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(world.carry) for _ in range(4)]:
            done.result()
    experiment = world.mlflow.experiment(world.experiment)
    found = httpx.post(
        f"{world.url}/api/2.0/mlflow/runs/search",
        json={"experiment_ids": [experiment]},
        trust_env=False,
    ).json()["runs"]
    tags = [{t["key"]: t["value"] for t in run["data"]["tags"]} for run in found]
    assert sorted(t["polar.job_id"] for t in tags) == sorted(jobs)


@pytest.mark.usefixtures("settings")
def test_without_a_server_nothing_is_followed():
    add_host("h1", slots=1)
    add_job()
    with transaction() as session:
        assert place(session, "r") == 1
    assert one("SELECT count(*) FROM mlflow_runs") == 0


def test_the_pointer_object_follows_the_commit(world: World):
    job_id, held = world.job()
    report(held)
    prefix = publish(world, held)
    assert write_next_pointer(world.objects)
    assert not write_next_pointer(world.objects)
    name = one("SELECT name FROM model_versions")
    content = world.objects.get_bytes(f"{PROJECT}/models/{name}/v1.json", 10_000)
    assert json.loads(content) == {
        "model": name,
        "version": 1,
        "job_id": job_id,
        "prefix": prefix,
        "manifest_sha256": "f" * 64,
    }
