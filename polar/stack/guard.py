"""The parent of the supervisor: when that is killed, nothing below it is left running.

    python -m polar.stack.guard [--attached] COMMAND [ARGUMENT ...]

Every process of the stack, detached ones too, is a descendant of this one, which adopts those
whose parents end. Killing this process instead makes the supervisor stop in order.
"""

import os
import signal
import subprocess
import sys
from types import FrameType

from polar.stack import proctree, spawn


def main() -> int:
    """Run the command, pass signals on to it, and clear up behind it."""
    arguments = sys.argv[1:]
    if arguments[0] == "--attached":
        spawn.die_with_parent(signal.SIGTERM)
        arguments = arguments[1:]
    spawn.adopt_orphans()
    child = subprocess.Popen(arguments)

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    code = child.wait()
    left = proctree.kill_below(os.getpid())
    if left:
        return 1
    return code if code >= 0 else 128 - code  # as shells report a death by signal


if __name__ == "__main__":
    sys.exit(main())
