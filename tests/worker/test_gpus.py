"""Devices that are not free: the driver is asked before a trainer starts on them."""

import os
import threading
from pathlib import Path

import pytest

from worker.gpus import Occupant, occupants, parse_compute_apps, require_free
from worker.lease import LeaseKeeper
from worker.target import ProvisioningFailed
from worker.waiting import Stopped


class Keeper(LeaseKeeper):
    """One that keeps no lease: only its flags count here."""

    def __init__(self) -> None:
        self.abandoned = threading.Event()
        self._changed = threading.Event()
        self._stopping_since = None


def driver(folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: str) -> Path:
    """A program `nvidia-smi` that gives these answers, the last one for ever; returns its notes."""
    notes = folder / "asked"
    for number, answer in enumerate(answers):
        (folder / f"answer-{number}").write_text(answer)
    program = folder / "nvidia-smi"
    program.write_text(
        f"""#!/bin/sh
cd '{folder}'
echo "$@" >> asked
n=$(($(wc -l < asked) - 1))
[ -e answer-$n ] || n={len(answers) - 1}
cat answer-$n
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return notes


def test_b25_lines_of_the_driver_become_processes():
    output = "4711, 20480\n12, 26\n13, [N/A]\nNo running processes found\n"
    # 26 MiB are a daemon's; nobody can tell what 13 has.
    assert parse_compute_apps(output) == [Occupant(4711, 20480)]


def test_b25_a_trainer_waits_for_the_memory_of_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    notes = driver(tmp_path, monkeypatch, "4711, 20480\n", "")
    require_free([0, 3], Keeper())
    asked = notes.read_text().splitlines()
    assert len(asked) == 2
    assert asked[0].startswith("--id=0,3 --query-compute-apps=pid,used_gpu_memory ")


def test_b25_devices_that_stay_in_use_are_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    driver(tmp_path, monkeypatch, "4711, 20480\n")
    with pytest.raises(ProvisioningFailed, match=r"GPU 1 .* not free: process 4711 \(20480 MiB\)"):
        require_free([1], Keeper(), patience=0.0)


def test_a_cancel_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    driver(tmp_path, monkeypatch, "4711, 20480\n")
    keeper = Keeper()
    keeper.abandon()
    with pytest.raises(Stopped):
        require_free([0], keeper)


def test_slots_of_processors_ask_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    notes = driver(tmp_path, monkeypatch, "4711, 20480\n")
    require_free([], Keeper())
    assert not notes.exists()


@pytest.mark.gpu
def test_b25_the_real_driver_sees_a_process_that_holds_memory():
    torch = pytest.importorskip("torch")
    held = torch.zeros(2**29, device="cuda:0")  # 2 GiB
    assert any(each.memory_mb >= 2048 for each in occupants([0]))
    del held
