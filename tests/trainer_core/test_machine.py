"""What a run takes of its machine: the GPUs that it may see, and memory that it keeps."""

import json
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import ROOT
from trainer_core import machine
from trainer_core.ranks import Seat
from trainer_core.spec import Launch

pytestmark = pytest.mark.train

LAUNCH = {
    "spec": {
        "task": {"type": "sft"},
        "model": {"name_or_path": "acme/tiny"},
        "data": {"train": [{"source": "hub", "path": "acme/rows"}]},
    },
    "attempt_id": "attempt",
    "job_id": "job",
    "job_name": "job",
    "paths": {"work": "work"},
}


@pytest.mark.parametrize(
    ("visible", "count", "devices"),
    [
        (None, 2, [0, 1]),
        ("3, 2", 2, [3, 2]),
        ("GPU-8f1a,GPU-c02b", 2, ["GPU-8f1a", "GPU-c02b"]),
        ("5,-1,6", 1, [5]),  # CUDA stops at the first that is none
    ],
)
def test_devices_are_those_that_are_visible(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int, devices: list[int | str]
) -> None:
    """Each process of DDP gets another one, and a rank sees the very one that was given."""
    import torch

    monkeypatch.setattr(machine, "_FIRST_GPU", Path(__file__))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    launch = machine.with_own_devices(Launch.model_validate(LAUNCH))
    assert launch.devices == devices
    travelled = Launch.model_validate_json(launch.model_dump_json())
    assert Seat(count=count).devices(travelled) == devices


BLOCK, BLOCKS, STEPS = 24 * 2**20, 4, 10
A_STEP = f"""
import json, os, resource, sys
import torch
from trainer_core.machine import take_share
from trainer_core.ranks import Seat
from trainer_core.spec import Launch

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    return [torch.ones({BLOCK} // 4) for _ in range({BLOCKS})]

torch.set_num_threads(1)
take_share(Launch.model_validate(json.load(sys.stdin)), Seat())
for _ in range(2):  # the heap grows to what a step needs
    step()
before = faults()
for _ in range({STEPS}):
    step()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's")
def test_what_a_step_frees_is_there_for_the_next_one() -> None:
    """By default each of the steps gets all pages of its blocks from the kernel anew."""
    run = subprocess.run(
        [sys.executable, "-c", A_STEP],
        input=json.dumps(LAUNCH),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert int(run.stdout) < BLOCK // resource.getpagesize()  # not even one block, once
