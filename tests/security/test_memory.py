"""Data that grows in memory ends its own preparation, not the host."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.services import ROOT
from tests.trainer_core import chat

pytestmark = pytest.mark.train


def bomb_of_pages(path: Path) -> None:
    """A few kilobytes of Parquet: one text of 16 MiB, which 4096 rows point at."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.DictionaryArray.from_arrays(pa.array([0] * 4096, pa.int32()), ["a" * (16 << 20)])
    pq.write_table(pa.table({"text": text}), path, compression="zstd")


def prepare(folder: Path, rows: Path, memory: int) -> dict[str, Any]:
    chat.qwen().save_pretrained(folder / "models" / "tiny")
    work = folder / "attempts" / "a"
    work.mkdir(parents=True)
    launch = {
        "attempt_id": "a",
        "job_id": "j",
        "job_name": "n",
        "paths": {
            "work": str(work),
            "data_folders": [str(rows.parent)],
            "model": str(folder / "models" / "tiny"),
        },
        "spec": {
            "task": {"type": "sft"},
            "model": {"name_or_path": "owner/model"},
            "data": {"train": [{"source": "folder", "path": str(rows)}]},
        },
    }
    (work / "launch.json").write_text(json.dumps(launch))
    environment = {
        **os.environ,
        "POLAR_KEEP_OUT": str(folder),
        "POLAR_MEMORY_LIMIT": str(memory),
        "HF_HOME": str(folder / "hub"),
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainer_core", "prepare"),
            *(str(work / "launch.json"), "--out", str(folder / "prepared" / "out")),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode in (64, 71), done.stderr
    assert not (folder / "prepared" / "out").exists()
    said: dict[str, Any] = json.loads((work / "exit.json").read_text())
    return said


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def test_pages_that_grow_end_the_preparation_in_words(tmp_path: Path, data: Path) -> None:
    bomb_of_pages(data / "bomb.parquet")
    assert (data / "bomb.parquet").stat().st_size < 1 << 20
    said = prepare(tmp_path, data / "bomb.parquet", 2 << 30)
    assert (said["reason"], "needs more memory" in said["message"]) == ("invalid_data", True), said
    assert "bomb.parquet" in said["message"]
