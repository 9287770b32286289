"""Folders that several attempts of a host want at once: one downloads, nobody removes."""

import errno
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.settings import Settings
from app.storage import Store
from tests.worker.world import PROJECT
from trainer_core.publish.manifest import write_manifest
from worker import transfer
from worker.holding import alone
from worker.transfer import download_folder, is_whole, upload_folder

PREFIX = f"{PROJECT}/prepared/abc/"


class SlowStore(Store):
    """A store that takes its time for each file; counts what is fetched."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.fetched: Counter[str] = Counter()

    def get_file(self, key: str, path: Path, **more: Any) -> str:
        self.fetched[path.name] += 1
        time.sleep(0.3)
        return super().get_file(key, path, **more)


@pytest.fixture
def stored(store_settings: Settings, tmp_path: Path) -> SlowStore:
    """A store with a whole folder of eight files at PREFIX."""
    folder = tmp_path / "made"
    (folder / "모델").mkdir(parents=True)
    for number in range(8):
        (folder / "모델" / f"part-{number}").write_bytes(os.urandom(1000))
    write_manifest(folder, "checkpoint", 1, ("s", "d"))
    store = SlowStore(store_settings)
    upload_folder(store, folder, PREFIX)
    return store


def all_at_once(count: int, store: SlowStore, folder: Path) -> None:
    """Each is back with a whole folder, and none ever sees one vanish that was whole."""
    together = threading.Barrier(count)

    def fetch(_: int) -> None:
        together.wait(10)
        assert download_folder(store, PREFIX, folder) == folder
        for _ in range(20):
            assert is_whole(folder)
            time.sleep(0.02)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(fetch, range(count)))


def test_a_folder_that_lost_a_file_in_the_store_or_is_cut_is_not_stored(stored: SlowStore):
    manifest, part = stored.get_bytes(f"{PREFIX}manifest.json", 10_000), f"{PREFIX}모델/part-3"
    content = stored.get_bytes(part, 1000)
    assert transfer.is_stored(stored, PREFIX)
    stored.delete(part)
    assert not transfer.is_stored(stored, PREFIX)
    stored.put_bytes(part, content[:-1])
    assert not transfer.is_stored(stored, PREFIX)
    stored.put_bytes(part, content)
    stored.put_bytes(f"{PREFIX}manifest.json", manifest[:-2])
    assert not transfer.is_stored(stored, PREFIX)
    stored.delete(f"{PREFIX}manifest.json")
    assert not transfer.is_stored(stored, PREFIX)


def test_attempts_that_want_the_same_folder_download_it_once(stored: SlowStore, tmp_path: Path):
    all_at_once(4, stored, tmp_path / "cache" / "abc")
    assert set(stored.fetched.values()) == {1}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["abc"]  # no lock, no draft


def test_one_that_stands_still_is_not_waited_for_and_may_come_back(
    stored: SlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transfer, "_WAIT", 0.1)
    folder = tmp_path / "cache" / "abc"
    folder.parent.mkdir()
    with alone(folder, 0.1):
        all_at_once(4, stored, folder)
    assert len(stored.fetched) == 8
    assert [path.name for path in folder.parent.iterdir()] == ["abc"]


def test_a_broken_folder_makes_room_for_a_whole_one(stored: SlowStore, tmp_path: Path):
    folder = tmp_path / "cache" / "abc"
    (folder / "모델").mkdir(parents=True)
    (folder / "모델" / "part-0").write_text("cut")
    all_at_once(2, stored, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["abc"]


def test_other_errors_of_the_disk_are_told(
    stored: SlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(transfer, "sync_folder", full)
    with pytest.raises(OSError, match="no space left"):
        download_folder(stored, PREFIX, tmp_path / "cache" / "abc")
