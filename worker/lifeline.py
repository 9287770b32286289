"""A pipe that has the kernel kill a trainer's process group when its supervisor is gone.

The supervisor alone holds the writing end. When it dies, however that happens, the end closes and
the kernel signals the owner of the reading end, which the trainer keeps open without knowing it.
Unlike PR_SET_PDEATHSIG this also works for processes that the fork server made.
"""

import fcntl
import os
import select
import signal


def make() -> tuple[int, int]:
    """Return (reading end for the trainer, writing end for us); both close at exec."""
    return os.pipe2(os.O_CLOEXEC)


def bind(reading: int, leader: int) -> None:
    """Have the kernel SIGKILL the process group of `leader` when the writing end closes."""
    fcntl.fcntl(reading, fcntl.F_SETOWN, -leader)
    fcntl.fcntl(reading, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(reading, fcntl.F_GETFL)
    fcntl.fcntl(reading, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([reading], [], [], 0)[0]:  # it closed before the line above
        os.killpg(leader, signal.SIGKILL)
