"""The uploader of checkpoints: nobody waits for it in vain, nothing that waits is forgotten."""

from pathlib import Path

import pytest

from app.settings import Settings
from app.storage import Store
from tests.services import wait_until
from worker.upload import CheckpointUploader, Written


class Recording(CheckpointUploader):
    """Notes what it would keep; `step` 13 ends its thread."""

    kept: list[int]

    def _keep(self, written: Written) -> None:
        if written.step == 13:
            self._stop.set()  # as after a lost lease
            return
        self.kept.append(written.step)


@pytest.fixture
def uploader(tmp_path: Path) -> Recording:
    Recording.kept = []
    return Recording(Store(Settings(home=tmp_path)), "att_1", "token", "prj_default/x/")


def test_draining_waits_for_what_was_added(uploader: Recording, tmp_path: Path) -> None:
    for step in range(1, 6):
        uploader.add(tmp_path, {"step": step, "path": "c"})
        assert uploader.drain(10)
        assert uploader.kept[-1] == step
    uploader.stop()


def test_draining_does_not_wait_for_a_thread_that_has_ended(
    uploader: Recording, tmp_path: Path
) -> None:
    uploader.add(tmp_path, {"step": 13, "path": "c"})
    assert uploader.drain(10)
    wait_until(lambda: not uploader._thread.is_alive())
    uploader.add(tmp_path, {"step": 14, "path": "c"})
    assert uploader.drain(0)
