"""Jobs from submission to model on one host: real trainer, store, database and processes."""

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from app.artifacts.manifest import read_manifest
from app.db import transaction
from app.ids import new_id
from app.jobs.service import cancel_job
from app.settings import get_settings
from app.storage import get_store
from polar.stack.services import Postgres, SeaweedFS
from tests.services import wait_until
from tests.worker.conftest import forget
from tests.worker.full import full
from tests.worker.gate import gate
from tests.worker.rig import (
    COMMIT,
    HOST,
    Rig,
    host_online,
    make_rig,
    new_secret,
    supervisors,
    warm_server,
)
from tests.worker.world import PROJECT, one, rows, run_sql
from trainer_core.events import read_events
from trainer_core.publish.manifest import verify
from worker.hand_back import hand_back
from worker.proctree import is_alive
from worker.transfer import download_folder

pytestmark = pytest.mark.train
LONG = {"training": {"max_steps": 100_000}}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return make_rig(tmp_path_factory.mktemp("모델 data"))


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, material: Rig) -> Iterator[Path]:
    with warm_server(tmp_path_factory.mktemp("warm"), material.folder / "hub") as path:
        yield path


@pytest.fixture
def rig(
    store_settings: object, warm: Path, material: Rig, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rig]:
    """A host with a warm fork server, quick to notice things."""
    del store_settings
    for name, value in {
        "POLAR_WORKER_ID": HOST,
        "POLAR_WARM_SOCKET": str(warm),
        "POLAR_DATA_FOLDERS": f'["{material.folder}"]',
        "POLAR_MODEL_FOLDERS": f'["{material.folder}"]',
        "HF_HOME": str(material.folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "POLAR_POLL": "0.05",
        "POLAR_GRACE": "10",
        "POLAR_CPU_SLOTS": str(len(os.sched_getaffinity(0))),
    }.items():
        monkeypatch.setenv(name, value)
    forget()
    host_online()
    yield material
    for (job_id,) in rows("SELECT id FROM jobs WHERE finished_at IS NULL"):
        cancel(job_id)
    ids = [i for (i,) in rows("SELECT id FROM attempts UNION SELECT id FROM jobs")]
    wait_until(lambda: not supervisors(*ids))


def cancel(job_id: str) -> None:
    with transaction() as session:
        cancel_job(session, PROJECT, job_id)


def test_from_submission_to_model(rig: Rig, tmp_path: Path) -> None:
    job_id = rig.submit()
    assert rig.until(job_id, "succeeded", "failed") == "succeeded", rig.story(job_id)
    said = [(d["status"], d["phase"]) for d in rig.events(job_id, "status")]
    assert said[0] == ("queued", "preparing")
    assert ("provisioning", None) in said
    assert [s for s in said if s[0] in ("running", "finalizing", "succeeded")] == [
        ("running", "loading"),
        ("running", "training"),
        ("running", "publishing"),
        ("finalizing", "publishing"),
        ("succeeded", None),
    ]
    assert sorted(rig.losses(job_id)) == list(range(1, 13))
    [(prefix, sha256)] = rows("SELECT prefix, manifest_sha256 FROM model_versions")
    manifest = verify(download_folder(get_store(), prefix, tmp_path / "model", sha256))
    assert manifest.kind == "model"
    names = {path for (path,) in rows("SELECT path FROM artifacts")}
    assert {"model/model.safetensors", "model/manifest.json", "ledger.jsonl"} <= names
    # All of it is the job's own: housekeeping throws prepared data away some day.
    own = f"{PROJECT}/jobs/{job_id}/"
    assert all(key.startswith(own) for (key,) in rows("SELECT key FROM artifacts"))
    for key, size in rows("SELECT key, size FROM artifacts"):
        assert get_store().head(key) == size
    kept = rows("SELECT step FROM checkpoints WHERE deleted_at IS NULL ORDER BY step")
    assert len(kept) >= 1
    assert kept[-1] == (12,)
    rig.assert_clean(job_id)
    [attempt_id] = rig.attempts(job_id)
    work = get_settings().home / "attempts" / attempt_id
    assert not (work / "model").exists()
    assert (work / "events.jsonl").exists()


def test_cold_and_warm_trainers_give_the_same_losses(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rig.submit()
    rig.until(first, "succeeded")
    monkeypatch.setenv("POLAR_WARM_SOCKET", str(rig.folder / "nobody.sock"))
    forget()
    second = rig.submit()
    rig.until(second, "succeeded", timeout=180)
    how = rows("SELECT handle #>> '{data,how}' FROM attempts ORDER BY id")
    assert how == [("warm",), ("cold",)]
    assert rig.losses(first) == rig.losses(second)
    assert len(rig.losses(first)) == 12


@pytest.mark.parametrize("phase", ["loading", "training", "evaluating", "publishing"])
def test_a32_b25_a_cancel_leaves_no_process(rig: Rig, phase: str) -> None:
    """The cancel comes with the very statement that enters the phase."""
    run_sql(
        "CREATE FUNCTION cancel_now() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.phase = '{phase}' THEN"
        " NEW.cancel_requested_at = coalesce(NEW.cancel_requested_at, now()); END IF;"
        " RETURN NEW; END $$"
    )
    run_sql(
        "CREATE TRIGGER cancel_now BEFORE UPDATE ON jobs FOR EACH ROW"
        " WHEN (OLD.status NOT IN ('succeeded', 'failed', 'cancelled', 'queued'))"
        " EXECUTE FUNCTION cancel_now()"
    )
    steps = 12 if phase == "publishing" else 100_000
    data = {"validation": {"split_ratio": 0.2}}
    job_id = rig.submit(
        training={"max_steps": steps}, data=data, evaluation={"strategy": "steps", "steps": 4}
    )
    assert rig.until(job_id, "succeeded", "failed", "cancelled") == "cancelled"
    assert rows("SELECT outcome, reason FROM attempts") == [("cancelled", None)]
    assert rows("SELECT id FROM model_versions") == []
    rig.assert_clean(job_id)


def test_a_cancel_while_preparing_kills_the_preparation(rig: Rig) -> None:
    big = rig.folder / "big.jsonl"
    line = json.dumps({"prompt": "Where is it? " * 20, "completion": "It is here. " * 20})
    big.write_text(f"{line}\n" * 50_000)
    job_id = rig.submit(data={"train": [{"source": "folder", "path": str(big)}]})
    folders = get_settings().home / "preparations"
    rig.when(job_id, lambda: any(folders.glob(f"{job_id}.*/output.log")))
    cancel(job_id)
    assert rig.status(job_id) == "cancelled"
    wait_until(lambda: one("SELECT status FROM preparations") == "failed", timeout=10)
    rig.assert_clean(job_id)
    assert rows("SELECT id FROM attempts") == []
    assert not any(folders.iterdir())
    left = [path for path in (get_settings().home / "prepared").iterdir() if path.is_dir()]
    assert left == []


def test_a8_a_killed_trainer_is_resumed_with_the_same_losses(rig: Rig) -> None:
    steps = {"training": {"max_steps": 30}}
    undisturbed = rig.submit(**steps)
    rig.until(undisturbed, "succeeded")
    job_id = rig.submit(**steps)
    rig.reach(job_id, 10)
    os.kill(rig.trainer(job_id).pid, signal.SIGKILL)
    rig.until(job_id, "succeeded")
    assert rig.losses(job_id) == rig.losses(undisturbed)
    outcomes = rows(
        "SELECT outcome, reason, exit_code FROM attempts WHERE job_id = :id ORDER BY number",
        id=job_id,
    )
    assert outcomes == [("failed", "killed", -9), ("succeeded", None, 0)]
    recovered = [d for d in rig.events(job_id, "attempt") if d["event"] == "recovered"]
    assert recovered[0]["step"] >= 8
    assert 0 <= recovered[0]["steps_lost"] < 8


def newest_accepted(attempt: str) -> int:
    """The newest checkpoint on the host up to which every event was accepted."""
    folder = get_settings().home / "attempts" / attempt
    last_n = one("SELECT last_n FROM attempts WHERE id = :id", id=attempt)
    events = [event for event, _ in read_events(folder / "events.jsonl")]
    said = [e.data["step"] for e in events if e.type == "checkpoint" and e.n <= last_n]
    assert (folder / "checkpoints" / f"step-{said[-1]:08d}").is_dir()
    return int(said[-1])


def test_b27_a_killed_supervisor_takes_its_trainer_along(rig: Rig) -> None:
    """The next attempt goes on from what lies on the host, whether it was uploaded or not."""
    job_id = rig.submit(training={"max_steps": 60})
    rig.reach(job_id, 10)
    trainer, [first] = rig.trainer(job_id), rig.attempts(job_id)
    [supervisor] = supervisors(first)
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not is_alive(trainer), timeout=5)
    step = newest_accepted(first)
    run_sql("DELETE FROM checkpoints")  # as if none had been uploaded
    rig.expire(first)
    rig.until(job_id, "succeeded")
    found = rows("SELECT outcome, reason FROM attempts ORDER BY number")
    assert found == [("lost", "machine_lost"), ("succeeded", None)]
    assert one("SELECT resumed_step FROM attempts ORDER BY number DESC LIMIT 1") == step
    # The second one stored what the first had no time for, before anything of its own.
    assert one("SELECT min(step) FROM checkpoints") == step


def test_b16_a_holder_that_was_taken_over_stops_at_once(rig: Rig) -> None:
    job_id = rig.submit(**LONG)
    rig.reach(job_id, 2)
    trainer, [first] = rig.trainer(job_id), rig.attempts(job_id)
    run_sql("UPDATE jobs SET max_attempts = 1")
    rig.expire(first)
    wait_until(lambda: not is_alive(trainer), timeout=5)
    assert rig.status(job_id) == "failed"
    rig.assert_clean(job_id)


def test_a_gone_stack_stops_the_trainer_whole(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from worker.proctree import identify

    stack = subprocess.Popen(["sleep", "600"])
    who = identify(stack.pid)
    assert who
    monkeypatch.setenv("POLAR_STACK_PID", f"{who.pid}:{who.start}")
    job_id = rig.submit(**LONG)
    rig.reach(job_id, 2)
    stack.kill()
    stack.wait()
    wait_until(lambda: one("SELECT outcome FROM attempts") == "interrupted", timeout=30)
    rig.assert_clean(job_id)
    assert rig.status(job_id) == "queued"
    # SIGTERM had it write a checkpoint, which the next attempt goes on from.
    assert one("SELECT count(*) FROM checkpoints") >= 1


def test_b28_the_time_limit_ends_the_job_with_a_checkpoint(rig: Rig) -> None:
    job_id = rig.submit(**LONG, compute={"max_runtime": "8s"}, checkpoint={"save_steps": 100_000})
    assert rig.until(job_id, "failed", "succeeded") == "failed"
    found = rows("SELECT reason, message FROM jobs")
    assert found == [("time_limit", "the job ran for as long as compute.max_runtime allows")]
    assert one("SELECT count(*) FROM checkpoints") == 1
    rig.assert_clean(job_id)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("prepare_timeout", "stalled"),
        ("fetch_timeout", "start_timeout"),
        ("publish_timeout", "store_unavailable"),
    ],
)
def test_b15_every_stage_of_a_host_has_its_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, setting: str, reason: str
) -> None:
    """Supervisors read their settings when they start: this one gets no time for that stage."""
    monkeypatch.setenv(f"POLAR_{setting.upper()}", "0.0001")
    job_id = rig.submit(retry={"max_attempts": 1})
    run_sql("UPDATE preparations SET tries = 2")
    assert rig.until(job_id, "failed", "succeeded") == "failed"
    assert one("SELECT reason FROM jobs WHERE id = :id", id=job_id) == reason
    assert rows("SELECT id FROM model_versions") == []
    rig.assert_clean(job_id)


def test_a_worker_that_ends_hands_back_and_waits_for_it(rig: Rig) -> None:
    job_id = rig.submit(**LONG, checkpoint={"save_steps": 100_000})
    rig.reach(job_id, 4)
    other = subprocess.Popen(["sleep", "60"])
    try:
        assert hand_back(get_settings(), "job_") == 0
        assert hand_back(get_settings(), "att_") == 1
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
    # All is said and done when it returns, the checkpoint in the store included.
    assert rows("SELECT outcome, reason, released_at IS NULL FROM attempts") == [
        ("interrupted", "interrupted", False)
    ]
    last = one("SELECT last_step FROM attempts")
    assert rows("SELECT step FROM checkpoints") == [(last,)]
    assert rig.status(job_id) == "queued"
    rig.assert_clean(job_id)


def test_b31_a_secret_reaches_the_trainer_alone(rig: Rig) -> None:
    value = "hf_not-to-be-seen-anywhere"
    model = {
        "source": "hub",
        "name_or_path": "shop/tiny",
        "revision": COMMIT,
        "token": {"secret": new_secret(value)},
    }
    job_id = rig.submit(**LONG, model=model)
    rig.reach(job_id, 2)
    trainer, [attempt_id] = rig.trainer(job_id), rig.attempts(job_id)
    for pid in (trainer.pid, *supervisors(attempt_id)):
        for name in ("environ", "cmdline"):
            assert value.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    # Nothing of ours is in the trainer's environment either.
    environment = Path(f"/proc/{trainer.pid}/environ").read_bytes()
    database = get_settings().database_url.get_secret_value()
    for ours in (database, get_settings().s3_secret_key.get_secret_value(), "must-not-be-here"):
        assert ours.encode() not in environment
    cancel(job_id)
    rig.until(job_id, "cancelled")
    rig.assert_clean(job_id)
    files = [path for path in get_settings().home.rglob("*") if path.is_file()]
    assert [path for path in files if value.encode() in path.read_bytes()] == []
    assert value not in str(rig.events(job_id))


def test_while_the_database_is_away_the_trainer_trains_on(
    rig: Rig, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gate(postgres.port) as door:
        url = make_url(get_settings().database_url.get_secret_value()).set(port=door.port)
        # Only the supervisors go through the door: this process has read its settings already.
        monkeypatch.setenv("POLAR_DATABASE_URL", url.render_as_string(hide_password=False))
        job_id = rig.submit(**LONG)
        rig.reach(job_id, 4)
        [attempt_id] = rig.attempts(job_id)
        events = get_settings().home / "attempts" / attempt_id / "events.jsonl"
        door.shut()
        told, written = len(rig.losses(job_id)), events.stat().st_size
        wait_until(lambda: events.stat().st_size > written + 5_000)
        assert len(rig.losses(job_id)) <= told + 1  # what was being committed just then
        door.open()
        rig.reach(job_id, told + 20)
        steps = sorted(rig.losses(job_id))
        assert steps == list(range(1, len(steps) + 1))
        cancel(job_id)
        rig.until(job_id, "cancelled")
        rig.assert_clean(job_id)


def test_a_store_that_is_away_for_a_while_loses_nothing(
    rig: Rig, seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gate(int(seaweed.endpoint.rpartition(":")[2])) as door:
        monkeypatch.setenv("POLAR_S3_ENDPOINT", f"http://127.0.0.1:{door.port}")
        job_id = rig.submit()
        rig.reach(job_id, 1)
        door.shut()
        [attempt_id] = rig.attempts(job_id)
        wait_until((get_settings().home / "attempts" / attempt_id / "exit.json").exists)
        door.open()
        assert rig.until(job_id, "succeeded", "failed") == "succeeded", rig.story(job_id)
    [(prefix, sha256)] = rows("SELECT prefix, manifest_sha256 FROM model_versions")
    assert read_manifest(get_store(), prefix, sha256).kind == "model"
    rig.assert_clean(job_id)


def test_b29_a_full_bucket_is_waited_out_and_nothing_is_half_published(
    rig: Rig, seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_STORE_PATIENCE", "2")  # then the attempt ends, and another one tries
    job_id = rig.submit(retry={"max_attempts": 20})
    rig.reach(job_id, 1)
    with full(seaweed, get_store().bucket):
        reasons = "SELECT 1 FROM attempts WHERE reason = 'store_unavailable'"
        rig.when(job_id, lambda: rows(reasons))
        assert rig.status(job_id) in ("queued", "provisioning", "running", "finalizing")
        assert rows("SELECT 1 FROM model_versions") == []
        assert rows("SELECT 1 FROM artifacts") == []
    assert rig.until(job_id, "succeeded", "failed") == "succeeded", rig.story(job_id)
    [(prefix, sha256)] = rows("SELECT prefix, manifest_sha256 FROM model_versions")
    assert read_manifest(get_store(), prefix, sha256).kind == "model"
    assert sorted(rig.losses(job_id)) == list(range(1, 13))
    rig.assert_clean(job_id)


def test_an_uploaded_data_set_is_fetched_and_prepared_once(rig: Rig) -> None:
    content = (rig.folder / "train.jsonl").read_bytes()
    dataset = new_id("ds")
    key = f"{PROJECT}/datasets/{dataset}/v1/train.jsonl"
    get_store().put_bytes(key, content)
    run_sql(
        "INSERT INTO datasets (id, project_id, name, version, source, location, file_name, size,"
        " sha256) VALUES (:id, :project, 'shop', 1, 'upload', :key, 'train.jsonl', :size, :sha)",
        id=dataset,
        project=PROJECT,
        key=key,
        size=len(content),
        sha=hashlib.sha256(content).hexdigest(),
    )
    data = {"train": [{"source": "dataset", "path": dataset}]}
    first = rig.submit(data=data)
    rig.until(first, "succeeded", "failed")
    get_store().delete(key)
    # The same rows from elsewhere: neither fetched nor tokenised again.
    second = rig.submit(data=data)
    rig.until(second, "succeeded", "failed")
    assert [rig.status(each) for each in (first, second)] == ["succeeded"] * 2, rig.story(second)
    assert one("SELECT count(DISTINCT prepared_key) FROM jobs") == 1
    assert rig.losses(first) == rig.losses(second)


def test_bad_data_fails_before_a_device_is_taken(rig: Rig) -> None:
    lines = ['{"prompt": "a", "completion": "b"}'] * 6 + ['{"prompt": "a", "completion": '] * 2
    bad = rig.folder / "bad.jsonl"
    bad.write_text("\n".join(lines))
    job_id = rig.submit(data={"train": [{"source": "folder", "path": str(bad)}]})
    assert rig.until(job_id, "failed", "succeeded") == "failed"
    reason, message = rows("SELECT reason, message FROM jobs")[0]
    assert reason == "invalid_data"
    assert "7" in message
    assert rows("SELECT id FROM attempts") == []
    rig.assert_clean(job_id)
