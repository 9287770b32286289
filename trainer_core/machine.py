"""The machine's part that belongs to a run: its threads, its devices and what they can do."""

import os
from pathlib import Path

from trainer_core.heap import keep_freed
from trainer_core.ranks import Seat
from trainer_core.resolve import Hardware
from trainer_core.spec import Launch
from trainer_core.spread import processes_of
from trainer_core.warm import quiet_libraries

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_FIRST_GPU = Path("/dev/nvidia0")


def take_share(launch: Launch, seat: Seat) -> None:
    """Use the seat's part of the CPU threads and CUDA devices that the run was given, no others.

    Set explicitly: in a forked process the environment's OMP_NUM_THREADS is read too late.
    """
    quiet_libraries()
    keep_freed()
    os.environ[_VISIBLE] = ",".join(map(str, seat.devices(launch)))
    if seat.count > 1:
        seat.dress(launch)
    if (threads := seat.threads(launch)) is not None:
        import torch

        torch.set_num_threads(threads)


def detect_hardware(launch: Launch) -> Hardware:
    """What the devices of a launch can do, or what it is planned for; with none it is a CPU."""
    if launch.hardware is not None:
        return launch.hardware
    threads = launch.threads or os.cpu_count() or 1
    if not launch.devices:
        return Hardware(cpu_threads=threads)
    import torch

    return Hardware(
        gpus=len(launch.devices),
        gpu_memory_gb=torch.cuda.get_device_properties(0).total_memory / 2**30,
        bf16=torch.cuda.is_bf16_supported(including_emulation=False),
        cpu_threads=threads,
    )


def with_own_devices(launch: Launch) -> Launch:
    """A launch without a service takes the GPUs that torch can use: one for each process.

    Nothing of CUDA may begin here, because processes are forked from this one.
    """
    if launch.devices or not _FIRST_GPU.exists():
        return launch
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    if not torch.cuda.is_available():
        return launch
    count = torch.cuda.device_count()
    visible = os.environ.get(_VISIBLE, ",".join(map(str, range(count))))
    names = [name.strip() for name in visible.split(",")][:count]
    found = [int(name) if name.isdigit() else name for name in names]
    return launch.model_copy(update={"devices": found[: processes_of(launch.spec, len(found))]})
