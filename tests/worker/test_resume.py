"""Which checkpoint a later attempt goes on from: none behind facts that the job never heard of."""

import errno
import json
from pathlib import Path

import pytest

from app.attempts.service import claim
from app.db import transaction
from app.settings import Settings
from app.storage import Store
from tests.worker.world import add_host, add_job, one, run_sql
from trainer_core.events import EventWriter
from trainer_core.publish.manifest import write_manifest
from worker.placement import place
from worker.resume import Resumer


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / "checkpoints" / f"step-{step:08d}"
    path.mkdir(parents=True)
    (path / "weights").write_text(str(step))
    write_manifest(path, "checkpoint", step, ("spec", "data"))
    return path


@pytest.fixture
def earlier(settings: Settings) -> Path:
    """The folder of an attempt that wrote checkpoints of steps 2, 4 and 6, the last one silently.

    Its events: 1 phase, 2–3 metrics, 4 checkpoint, 5–6 metrics, 7 checkpoint, 8 metrics.
    """
    add_host("h1", slots=1)
    add_job()
    with transaction() as session:
        place(session, "r")
    attempt = one("SELECT id FROM attempts")
    with transaction() as session:
        assert claim(session, attempt, "h1", "nonce")
    folder = settings.home / "attempts" / attempt
    for step in (2, 4, 6):
        checkpoint(folder, step)
    writer = EventWriter(folder / "events.jsonl")
    writer.emit("phase", phase="training")
    for step in (1, 2, 3, 4, 5):
        writer.emit("metrics", step=step, epoch=0.1, loss=1.0)
        if step in (2, 4):
            writer.emit("checkpoint", step=step, path=f"checkpoints/step-{step:08d}", bytes=1)
    writer.close()
    return folder


@pytest.mark.parametrize(
    ("accepted", "step"), [(8, 6), (7, 4), (6, 2), (4, 2), (3, None), (0, None)]
)
def test_b27_no_checkpoint_behind_an_event_that_was_not_accepted(
    settings: Settings, earlier: Path, accepted: int, step: int | None
):
    """A frozen supervisor's trainer ran on: what it said was refused, what it saved is passed."""
    run_sql("UPDATE attempts SET last_n = :n", n=accepted)
    job = one("SELECT id FROM jobs")
    found = Resumer(settings.home, Store(settings), job, settings.home / "work").find()
    expected = earlier / "checkpoints" / f"step-{step:08d}" if step else None
    assert found == expected


def test_a_file_of_events_that_breaks_off_counts_as_far_as_it_goes(
    settings: Settings, earlier: Path
):
    with (earlier / "events.jsonl").open("a") as file:
        file.write("no event\n")
    run_sql("UPDATE attempts SET last_n = 8")
    job = one("SELECT id FROM jobs")
    found = Resumer(settings.home, Store(settings), job, settings.home / "work").find()
    assert found == earlier / "checkpoints" / "step-00000006"


def test_b27_a_host_without_room_for_the_checkpoint_does_not_begin_again(
    store_settings: Settings, tmp_path: Path
):
    """Beginning from the start would retire what is stored: another host has the room."""
    add_host("h1", slots=1)
    job = add_job()
    with transaction() as session:
        place(session, "r")
    attempt = one("SELECT id FROM attempts")
    store = Store(store_settings)
    prefix = f"prj_default/jobs/{job}/{attempt}/checkpoints/step-00000009/"
    folder = checkpoint(tmp_path, 9)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"][0]["size"] = 10**15
    store.put_bytes(f"{prefix}manifest.json", json.dumps(manifest).encode())
    run_sql(
        "INSERT INTO checkpoints (id, project_id, job_id, attempt_id, step, prefix,"
        " manifest_sha256, size) VALUES ('ckp_1', 'prj_default', :j, :a, 9, :p, '', 1)",
        j=job,
        a=attempt,
        p=prefix,
    )
    with pytest.raises(OSError, match="bytes are free") as raised:
        Resumer(store_settings.home, store, job, tmp_path / "work").find()
    assert raised.value.errno == errno.ENOSPC
    store.delete_all([f"{prefix}manifest.json"])
    assert Resumer(store_settings.home, store, job, tmp_path / "work").find() is None  # gone
