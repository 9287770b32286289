"""The machine's part that belongs to a run: its threads, its devices and what they can do."""

import os

from trainer_core.spec import Launch
from trainer_core.warm import quiet_libraries


def take_share(launch: Launch) -> None:
    """Use the CPU threads and the CUDA devices that the run was given, and no others.

    Set explicitly: in a forked process the environment's OMP_NUM_THREADS is read too late.
    """
    quiet_libraries()
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, launch.devices))
    if launch.threads is not None:
        import torch

        torch.set_num_threads(launch.threads)
