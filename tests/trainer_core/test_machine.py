"""The GPUs that a run without a service takes: those that it may see, by the names they have."""

from pathlib import Path

import pytest

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
