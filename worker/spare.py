"""A child forked ahead of need: it waits for its request, so that nobody waits for the fork.

Copying the page tables of a process that holds the training stack takes some 20 ms.
"""

import array
import ctypes
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from worker.forks import LONGEST

_PR_SET_PDEATHSIG = 1
Become = Callable[[bytes, list[int]], NoReturn]


@dataclass
class Spare:
    """The waiting child; it ends with the process that forked it."""

    pid: int
    _connection: socket.socket

    def give(self, message: bytes, descriptors: Sequence[int]) -> bool:
        """Hand it the request and copies of the descriptors; False when it is gone."""
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self._connection:
            try:
                self._connection.sendmsg([message], passed)
            except OSError:
                return False
        return True


def fork_spare(become: Become) -> Spare:
    """Fork a child that calls `become(message, descriptors)` once it is given a request."""
    # Whole messages: a request that is there is there with its descriptors.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _wait(theirs, parent, become)
        finally:
            os._exit(70)
    theirs.close()
    return Spare(pid, ours)


def _wait(connection: socket.socket, parent: int, become: Become) -> None:
    signal.set_wakeup_fd(-1)  # the parent's bell
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    bind_to_parent(signal.SIGKILL)
    # Nothing of the parent's is held open: its other children's clients wait for its hang-up.
    kept = connection.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, 65_536)
    if os.getppid() != parent:
        return
    message, descriptors, _, _ = socket.recv_fds(connection, LONGEST, 4)
    if message:
        bind_to_parent(0)  # from now on it is its client's
        become(message, descriptors)


def bind_to_parent(number: int) -> None:
    """Have the kernel send this signal when the forking process ends; 0: none."""
    with suppress(OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
