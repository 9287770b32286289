"""Uploads: training never waits for them, nothing half-stored counts, the newest wins."""

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import worker.upload
from app.attempts import service
from app.attempts.service import Claim
from app.db import transaction
from app.settings import Settings
from app.storage import ObjectMissing, Patience, Store, StoreUnavailable
from polar.stack.services import SeaweedFS
from tests.services import wait_until
from tests.worker.full import full
from tests.worker.gate import gate
from tests.worker.world import PROJECT, add_host, add_job, one, rows, run_sql
from trainer_core.publish.manifest import write_manifest
from worker.endings import ending_of_error
from worker.fetch import attempt_prefix
from worker.placement import place
from worker.transfer import download_folder, upload_folder
from worker.upload import CheckpointUploader, patiently_upload

KEEP = 2


class SlowStore(Store):
    """A store in which files arrive only while `open_` is set; notes what is under way."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.open_ = threading.Event()
        self.begun: list[str] = []

    def put_file(self, key: str, path: Path, **more: Any) -> str:
        self.begun.append(key)
        assert self.open_.wait(60)
        return super().put_file(key, path, **more)


@pytest.fixture
def claim(store_settings: Settings) -> Claim:
    del store_settings
    return new_claim(add_job())


def new_claim(job: str) -> Claim:
    """Place the job on a host of its own and claim it."""
    add_host(f"host of {job}", slots=1)
    with transaction() as session:
        assert place(session, "r") == 1
    attempt, host = rows(
        "SELECT id, worker_id FROM attempts WHERE job_id = :j AND finished_at IS NULL", j=job
    )[0]
    with transaction() as session:
        held = service.claim(session, attempt, host, "nonce")
    assert held is not None
    return held


def write_checkpoint(work: Path, step: int, size: int = 1000) -> dict[str, Any]:
    """Write a whole checkpoint, prune older ones as the trainer does; returns its event's data."""
    folder = work / "checkpoints" / f"step-{step:08d}"
    (folder / "모델").mkdir(parents=True)
    (folder / "모델" / "weights").write_bytes(os.urandom(size))
    (folder / "state.json").write_text(f'{{"step": {step}}}')
    write_manifest(folder, "checkpoint", step, ("s", "d"))
    for old in sorted(folder.parent.iterdir())[:-KEEP]:
        shutil.rmtree(old)
    return {"step": step, "path": f"checkpoints/{folder.name}"}


def prefix_of(claim: Claim) -> str:
    return attempt_prefix(claim.project_id, claim.job_id, claim.attempt_id)


@pytest.fixture
def uploaders() -> Iterator[list[CheckpointUploader]]:
    started: list[CheckpointUploader] = []
    yield started
    for each in started:
        each.stop()
        each._thread.join(20)


def start(
    store: Store, claim: Claim, started: list[CheckpointUploader], token: str | None = None
) -> CheckpointUploader:
    made = CheckpointUploader(store, claim.attempt_id, token or claim.token, prefix_of(claim))
    started.append(made)
    return made


def stored_steps(job: str) -> list[int]:
    query = "SELECT step FROM checkpoints WHERE job_id = :j AND deleted_at IS NULL ORDER BY step"
    return [step for (step,) in rows(query, j=job)]


def warnings(job: str) -> list[dict[str, Any]]:
    query = "SELECT data FROM job_events WHERE job_id = :j AND type = 'warning' ORDER BY seq"
    return [data for (data,) in rows(query, j=job)]


def test_b27_a_slow_store_neither_stops_training_nor_fills_the_disk(
    store_settings: Settings, claim: Claim, uploaders: list[CheckpointUploader], tmp_path: Path
):
    store = SlowStore(store_settings)
    uploader = start(store, claim, uploaders)
    event = write_checkpoint(tmp_path, 4)
    uploader.add(tmp_path, event)
    wait_until(lambda: store.begun)  # the first is under way, and will not get on
    contents = {}
    for step in (8, 12, 16, 20):
        uploader.add(tmp_path, write_checkpoint(tmp_path, step))
        contents[step] = _content(tmp_path / "checkpoints" / f"step-{step:08d}")
        # The trainer keeps two; of ours there are the one under way and the newest.
        held = sorted(path.name for path in (tmp_path / "uploading").iterdir())
        assert held == ["step-00000004", f"step-{step:08d}"]
    assert not uploader.drain(0.05)
    store.open_.set()
    assert uploader.drain(30)
    assert stored_steps(claim.job_id) == [4, 20]
    [warning] = warnings(claim.job_id)
    assert warning["code"] == "checkpoint_skipped"
    assert "step 8, 12, 16 stayed on the worker" in warning["message"]
    assert not (tmp_path / "uploading").exists()
    prefix = f"{prefix_of(claim)}checkpoints/step-00000020/"
    assert _content(download_folder(Store(store_settings), prefix, tmp_path / "x")) == contents[20]


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_b27_an_outage_is_told_once_and_waited_out(
    store_settings: Settings,
    seaweed: SeaweedFS,
    claim: Claim,
    uploaders: list[CheckpointUploader],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(worker.upload, "_ROUND", 0.2)
    monkeypatch.setattr(worker.upload, "_PAUSE", 0.1)
    with gate(seaweed.ports.s3) as door:
        door.shut()
        store_settings.s3_endpoint = f"http://127.0.0.1:{door.port}"
        uploader = start(Store(store_settings), claim, uploaders)
        uploader.add(tmp_path, write_checkpoint(tmp_path, 4))
        [warning] = wait_until(lambda: warnings(claim.job_id))
        assert warning["code"] == "checkpoint_not_stored"
        assert "step 4 stays on the worker" in warning["message"]
        assert stored_steps(claim.job_id) == []
        door.open()
        assert uploader.drain(60)
    assert stored_steps(claim.job_id) == [4]
    assert len(warnings(claim.job_id)) == 1


def test_b26_a_checkpoint_counts_only_with_its_manifest_and_the_newest_two_stay(
    store_settings: Settings, claim: Claim, uploaders: list[CheckpointUploader], tmp_path: Path
):
    run_sql(
        "UPDATE jobs SET spec = spec || CAST(:c AS jsonb) WHERE id = :j",
        j=claim.job_id,
        c='{"checkpoint": {"save_total_limit": 1}}',  # others' default loses all with one file
    )
    store = Store(store_settings)
    uploader = start(store, claim, uploaders)
    for step in (4, 8, 12):
        event = write_checkpoint(tmp_path, step)
        uploader.add(tmp_path, event)
        assert uploader.drain(30)
    assert stored_steps(claim.job_id) == [8, 12]
    kept = {item.key.split("/")[5] for item in store.list_objects(prefix_of(claim))}
    assert kept == {"step-00000008", "step-00000012"}
    purged = "SELECT step FROM checkpoints WHERE purged_at IS NOT NULL"
    assert rows(purged) == [(4,)]
    torn = tmp_path / "checkpoints" / "step-00000016"
    shutil.copytree(tmp_path / "checkpoints" / "step-00000012", torn)
    (torn / "state.json").write_text("cut")  # not what its manifest says
    uploader.add(tmp_path, {"step": 16, "path": "checkpoints/step-00000016"})
    assert uploader.drain(30)
    assert stored_steps(claim.job_id) == [8, 12]
    assert store.head(f"{prefix_of(claim)}checkpoints/step-00000016/manifest.json") is None


def test_b38_a_holder_whose_lease_was_taken_commits_no_checkpoint(
    store_settings: Settings, claim: Claim, uploaders: list[CheckpointUploader], tmp_path: Path
):
    uploader = start(Store(store_settings), claim, uploaders, token="an older lease's")
    uploader.add(tmp_path, write_checkpoint(tmp_path, 4))
    assert uploader.drain(30)
    assert stored_steps(claim.job_id) == []
    wait_until(lambda: not uploader._thread.is_alive())
    uploader.add(tmp_path, write_checkpoint(tmp_path, 8))  # nobody waits for it
    assert uploader.drain(0)
    assert not (tmp_path / "uploading").exists()


class MovedOut(Exception):
    """An error that nobody of ours knows."""


def test_b27_an_error_that_nobody_expected_costs_one_checkpoint_and_is_told(
    store_settings: Settings, claim: Claim, uploaders: list[CheckpointUploader], tmp_path: Path
):
    class Odd(Store):
        def put_file(self, key: str, path: Path, **more: Any) -> str:
            if "step-00000004" in key:
                raise MovedOut("nobody lives here")
            return super().put_file(key, path, **more)

    uploader = start(Odd(store_settings), claim, uploaders)
    uploader.add(tmp_path, write_checkpoint(tmp_path, 4))
    assert uploader.drain(30)
    [warning] = warnings(claim.job_id)
    assert warning["code"] == "checkpoint_not_stored"
    assert "of step 4 is not stored: MovedOut: nobody lives here" in warning["message"]
    uploader.add(tmp_path, write_checkpoint(tmp_path, 8))
    assert uploader.drain(30)
    assert stored_steps(claim.job_id) == [8]


def test_b27_a_database_that_refuses_one_checkpoint_takes_the_next(
    store_settings: Settings, claim: Claim, uploaders: list[CheckpointUploader], tmp_path: Path
):
    run_sql("ALTER TABLE checkpoints ADD CONSTRAINT odd CHECK (step <> 4)")
    uploader = start(Store(store_settings), claim, uploaders)
    for step in (4, 8):
        uploader.add(tmp_path, write_checkpoint(tmp_path, step))
        assert uploader.drain(30)
    assert stored_steps(claim.job_id) == [8]
    assert [each["code"] for each in warnings(claim.job_id)] == ["checkpoint_not_stored"]


def test_b27_a_big_checkpoint_whose_parts_the_store_lost_is_sent_again(
    store_settings: Settings,
    seaweed: SeaweedFS,
    claim: Claim,
    uploaders: list[CheckpointUploader],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """As an operator's clean-up of unfinished uploads does it, in the last possible moment."""
    monkeypatch.setattr(worker.upload, "_ROUND", 0.5)
    monkeypatch.setattr(worker.upload, "_PAUSE", 0.1)
    lost: list[str] = []

    class Forgetful(Store):
        def _call(self, operation: str, key: str, **arguments: Any) -> Any:
            if operation == "complete_multipart_upload" and not lost:
                lost.append(key)
                upload = arguments["UploadId"]
                seaweed.client().abort_multipart_upload(
                    Bucket=self.bucket, Key=key, UploadId=upload
                )
            return super()._call(operation, key, **arguments)

    uploader = start(Forgetful(store_settings), claim, uploaders)
    uploader.add(tmp_path, write_checkpoint(tmp_path, 4, size=20 * 2**20))  # three parts
    assert uploader.drain(60)
    assert stored_steps(claim.job_id) == [4]
    [key] = lost
    assert key.endswith("weights")
    prefix = f"{prefix_of(claim)}checkpoints/step-00000004/"
    back = download_folder(Store(store_settings), prefix, tmp_path / "x")
    assert _content(back) == _content(tmp_path / "checkpoints" / "step-00000004")


def test_parts_that_arrived_are_not_sent_again_after_an_outage(
    store_settings: Settings, seaweed: SeaweedFS, tmp_path: Path
):
    sent: list[int] = []
    with gate(seaweed.ports.s3) as door:

        class Counting(Store):
            def _call(self, operation: str, key: str, **arguments: Any) -> Any:
                answer = super()._call(operation, key, **arguments)
                if operation == "upload_part":
                    sent.append(arguments["PartNumber"])
                    if len(sent) == 4:
                        door.shut()
                        threading.Timer(1.0, door.open).start()
                return answer

        store_settings.s3_endpoint = f"http://127.0.0.1:{door.port}"
        store = Counting(store_settings)
        path = tmp_path / "weights"
        path.write_bytes(os.urandom(60 * 2**20))  # eight parts of 8 MiB
        digest = store.put_file("prj_default/w", path, patience=Patience(60))
    assert sorted(sent) == list(range(1, 9))
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    store_settings.s3_endpoint = seaweed.endpoint
    again = Store(store_settings).get_file("prj_default/w", tmp_path / "again", sha256=digest)
    assert again == digest


def test_an_upload_that_is_given_up_leaves_no_parts(
    store_settings: Settings, seaweed: SeaweedFS, tmp_path: Path
):
    store = Store(store_settings)
    path = tmp_path / "weights"
    path.write_bytes(bytes(20 * 2**20))
    with pytest.raises(OSError, match="was expected"):
        store.put_file("prj_default/w", path, sha256="0" * 64)
    assert not seaweed.client().list_multipart_uploads(Bucket=store.bucket).get("Uploads")
    assert store.head("prj_default/w") is None


def test_b29_a_full_bucket_publishes_nothing_by_half_and_is_waited_out(
    store_settings: Settings, seaweed: SeaweedFS, tmp_path: Path
):
    store = Store(store_settings)
    store.put_bytes("prj_default/before", b"x")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_bytes(os.urandom(10 * 2**20))
    (folder / "README.md").write_text("# 모델")
    write_manifest(folder, "model", 3, ("s", "d"))
    prefix = "prj_default/jobs/job_1/att_1/model/"
    with full(seaweed, store.bucket):
        with pytest.raises(StoreUnavailable) as refused:
            upload_folder(store, folder, prefix)
        assert refused.value.code == "store_unavailable"
        assert store.get_bytes("prj_default/before", 10) == b"x"
        assert list(store.list_objects(prefix)) == []
        threads = [threading.Thread(target=patiently_upload, args=[store, folder, prefix])]
        threads[0].start()
    threads[0].join(120)
    with pytest.raises(ObjectMissing):
        download_folder(store, "prj_default/jobs/job_1/att_2/model/", tmp_path / "none")
    assert _content(download_folder(store, prefix, tmp_path / "again")) == _content(folder)


def test_a_full_disk_is_said_before_anything_is_fetched(
    store_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Store(store_settings)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_bytes(bytes(5000))
    write_manifest(folder, "model", 3, ("s", "d"))
    upload_folder(store, folder, f"{PROJECT}/jobs/j/a/model/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 5, 4))
    with pytest.raises(OSError, match="5000 bytes are needed and 4 bytes are free") as full_disk:
        download_folder(store, f"{PROJECT}/jobs/j/a/model/", tmp_path / "cache" / "model")
    assert ending_of_error(full_disk.value).reason == "disk_full"
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_stopped_uploader_ends_soon_and_takes_its_links_with_it(
    store_settings: Settings, claim: Claim, uploaders: list[CheckpointUploader], tmp_path: Path
):
    store_settings.s3_endpoint = "http://127.0.0.1:9"
    uploader = start(Store(store_settings), claim, uploaders)
    uploader.add(tmp_path, write_checkpoint(tmp_path, 4))
    uploader.add(tmp_path, write_checkpoint(tmp_path, 8))
    uploader.stop()
    wait_until(lambda: not uploader._thread.is_alive())
    assert uploader.drain(0)
    assert not (tmp_path / "uploading").exists()
    assert one("SELECT count(*) FROM checkpoints") == 0
