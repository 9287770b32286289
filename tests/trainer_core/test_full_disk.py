"""A full disk is told by exit code and reason, and leaves whole files."""

import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from tests.services import ROOT
from trainer_core.checkpoints import Checkpointer, LoopState
from trainer_core.errors import TrainerError
from trainer_core.events import EventWriter, read_events


def test_a37_an_event_that_found_no_room_leaves_no_part_and_gives_its_number_back(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    writer = EventWriter(path)
    writer.emit("log", level="info", message="before")
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN  # Python's own choice
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            writer.emit("log", level="info", message="no room for this one")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    writer.emit("result", status="failed", reason="disk_full", message="", step=0)
    writer.close()
    assert [(e.n, e.type) for e, _ in read_events(path)] == [(1, "log"), (2, "result")]


def test_a37_the_reason_is_kept_when_nobody_takes_the_words():
    """stdout and stderr lie on the full disk, too."""
    program = """
from pathlib import Path
from trainer_core import words
from trainer_core.endings import Ending, ending_of, write_exit
words.say("one line")
full = ending_of(OSError(28, "No space left on device"))
assert (full.code, full.reason) == (73, "disk_full"), full
assert ending_of(ZeroDivisionError("one by nothing")).code == 70
write_exit(Path("/nowhere"), Ending.succeeded())
words.flush()
import os
os._exit(full.code)
"""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=full, cwd=ROOT, check=False
        )
    assert done.returncode == 73


def test_a_checkpoint_that_the_disk_did_not_keep_is_told(tmp_path: Path):
    """It is synced beside the training: the next save, or the end, says that it was not."""
    told: list[tuple[str, str]] = []
    report = SimpleNamespace(
        emit=lambda *_, **__: None, log=lambda text, level: told.append((text, level))
    )
    checkpointer = Checkpointer(tmp_path, ("s", "d"), 2, report)

    def write() -> None:
        folder = checkpointer.staging / "checkpoint-1"
        folder.mkdir()
        (folder / "weights").write_bytes(b"w")

    def lose_one() -> None:
        disk = Event()
        checkpointer._disk.submit(disk.wait)
        checkpointer.save(1, write, LoopState())
        shutil.rmtree(tmp_path / "checkpoints" / "step-00000001")
        disk.set()

    lose_one()
    with pytest.raises(TrainerError, match="did not keep the newest checkpoint"):
        checkpointer.save(2, write, LoopState())
    checkpointer.settle()  # said once
    lose_one()
    checkpointer.let_go()
    [(text, level)] = told
    assert "did not keep the newest checkpoint" in text
    assert level == "warning"
