"""Run a command that the kernel kills together with its parent.

    leash.py PARENT_PID COMMAND [ARGUMENT ...]

A program of its own, not a `preexec_fn`: the parent has threads, and Python code between fork
and exec may then hang.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, then become the command."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # the parent ended before the line above
        sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - the stack's own table of commands


if __name__ == "__main__":
    main()
