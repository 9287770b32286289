"""A back-up taken under load, restored elsewhere: what ran goes on there to the last digit."""

import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from polar.manifest import verify
from tests.e2e.harness import World, running_stack
from tests.plain import Plain
from tests.services import ROOT, wait_until

pytestmark = [pytest.mark.train, pytest.mark.drill, pytest.mark.timeout(900)]

STEPS = 60


def polar(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name[:6] != "POLAR_"}
    return subprocess.run(
        [sys.executable, "-m", "polar", *arguments],
        cwd=ROOT,
        env={**environment, "POLAR_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@dataclass
class Uploads:
    """A client that uploads one data set after the other; `done` are those that were answered."""

    client: Plain
    folder: Path
    done: dict[str, str] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        for number in itertools.count():
            if self.stop.is_set():
                return
            file = self.folder / "upload.jsonl"
            file.write_text(f'{{"text": "{number} {"x" * 200_000}"}}\n')
            made = self.client.upload(file, f"load-{number % 7}")
            self.done[made["id"]] = hashlib.sha256(file.read_bytes()).hexdigest()


@contextmanager
def uploading(world: World, folder: Path) -> Iterator[Uploads]:
    with Plain(world.client.url, world.client.key) as client:
        uploads = Uploads(client, folder)
        thread = threading.Thread(target=uploads.run, daemon=True)
        thread.start()
        try:
            yield uploads
        finally:
            uploads.stop.set()
            thread.join(30)


def model_of_its_own(world: World) -> Path:
    """A model in the data folder, as `make run` puts it there: it moves with the back-up.

    Where it lay before, the restored stack may not read.
    """
    return Path(shutil.copytree(world.model, world.home.models / "tiny", dirs_exist_ok=True))


def slow_job(world: World) -> str:
    """A job that goes on for as long as the back-up takes: it trains, and then waits frozen."""
    spec = world.spec(
        steps=STEPS, rows="rows.jsonl", task={"packing": True}, checkpoint={"save_steps": 5}
    )
    spec["model"]["name_or_path"] = str(model_of_its_own(world))
    spec["adapter"] = {"type": "lora", "r": 4, "lora_alpha": 8, "lora_dropout": 0.2}
    return str(world.client.submit(spec)["id"])


def stored_steps(world: World, job_id: str) -> list[int]:
    query = "SELECT step FROM checkpoints WHERE job_id = %s AND deleted_at IS NULL ORDER BY step"
    return [row[0] for row in world.sql(query, job_id)]


def test_the_restored_world_goes_on(world: World, tmp_path: Path) -> None:
    undisturbed = slow_job(world)
    world.until(undisturbed, "succeeded")
    with uploading(world, tmp_path) as uploads:
        wait_until(lambda: len(uploads.done) > 3, timeout=60)
        running = slow_job(world)
        trainer = world.freeze_after(running, 12)  # in its midst; others carry what it left
        wait_until(lambda: stored_steps(world, running), timeout=90)
        before = dict(uploads.done)
        waiting = world.submit(steps=4, task={"max_length": 63})
        taken = polar(world.home.path, "backup", str(tmp_path / "백업.tar"))
        assert taken.returncode == 0, taken.stdout + taken.stderr
        assert len(uploads.done) > len(before)  # nobody waited for the back-up
    trainer.resume()
    home = tmp_path / "다른 집"
    done = polar(home, "restore", str(tmp_path / "백업.tar"))
    assert done.returncode == 0, done.stdout + done.stderr
    with running_stack(home, world.model, world.data) as restored:
        the_same_key_opens_it(world, restored)
        uploads_are_whole(restored, before)
        for job_id in (running, waiting):
            restored.until(job_id, "succeeded", timeout=150)
        went_on(restored, running, world.losses(undisturbed))
        a_finished_model_is_whole(restored, undisturbed, tmp_path / "model")
    world.until(running, "succeeded")  # the first world has not noticed
    assert world.losses(running) == world.losses(undisturbed)
    assert len(world.get(running)["attempts"]) == 1


def the_same_key_opens_it(world: World, restored: World) -> None:
    assert restored.client.key == world.client.key
    assert restored.client.url != world.client.url


def uploads_are_whole(restored: World, before: dict[str, str]) -> None:
    """What was answered before the back-up began is there, and reads as it was sent."""
    page: Any = {"next_cursor": None}
    found: dict[str, Any] = {}
    while page:
        cursor = {"cursor": page["next_cursor"]} if page["next_cursor"] else {}
        page = restored.client.request("GET", "/datasets", params={"limit": 100, **cursor})
        found |= {each["id"]: each["sha256"] for each in page["items"]}
        page = page if page["next_cursor"] else None
    assert before.items() <= found.items()
    for dataset_id in found:
        preview = restored.client.request("GET", f"/datasets/{dataset_id}/preview")
        assert len(preview["rows"]) == 1


def went_on(restored: World, job_id: str, losses: dict[int, float]) -> None:
    """The attempt of the lost world is over; the next one began at its newest stored checkpoint."""
    first, second = restored.get(job_id)["attempts"]
    assert (first["outcome"], first["reason"]) == ("interrupted", "interrupted")
    assert "restored from a back-up" in first["message"]
    assert second["resumed_step"] >= 5
    assert restored.losses(job_id) == losses
    assert len(losses) == STEPS
    seqs = [event["seq"] for event in restored.events(job_id)]
    [leap] = [after for before, after in itertools.pairwise(seqs) if after != before + 1]
    kept = seqs.index(leap)  # what the back-up had; then numbers that were never given out
    assert seqs == [*range(1, kept + 1), *range(leap, leap + len(seqs) - kept)]
    assert leap > 10**12


def a_finished_model_is_whole(restored: World, job_id: str, folder: Path) -> None:
    models = [a["path"] for a in restored.client.artifacts(job_id) if a["kind"] == "model"]
    root = next(path for path in models if path.endswith("manifest.json"))
    prefix = root.removesuffix("manifest.json")
    for path in models:
        restored.client.download(job_id, path, folder / path.removeprefix(prefix))
    assert verify(folder) == len(models) - 1
