"""Folders of uploads go when their process has ended: a lock tells, in whatever container it is."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.datasets.temporary import clean_uploads, temporary_folder
from tests.services import ROOT

HOLD = """
import sys
from pathlib import Path
from app.datasets.temporary import temporary_folder
with temporary_folder(Path(sys.argv[1])) as folder:
    (folder / "upload").write_bytes(b"1")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process in the middle of an upload: the first line it says is its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait(10)


def test_a_folder_goes_with_its_process_and_not_before(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert holder.stdout
    folder = Path(holder.stdout.readline().strip())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert clean_uploads(tmp_path) == 0
    with temporary_folder(tmp_path) as ours:
        assert clean_uploads(tmp_path) == 0
        assert (folder / "upload").exists()
        assert ours.is_dir()
    assert not ours.exists()
    holder.kill()
    holder.wait(10)
    assert clean_uploads(tmp_path) == 1
    assert list((tmp_path / "uploads").iterdir()) == []


def test_what_cannot_be_told_goes_by_its_age(tmp_path: Path) -> None:
    for name in ("4711-0123456789abcdef", ".0123456789abcdef"):
        young, old = (tmp_path / "uploads" / f"{name}{age}" for age in ("a", "b"))
        for folder in (young, old):
            folder.mkdir(parents=True)
        os.utime(old, (0, 0))
    assert clean_uploads(tmp_path) == 2
    assert all(folder.name.endswith("a") for folder in (tmp_path / "uploads").iterdir())
