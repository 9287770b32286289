"""What a run says to people on stdout and stderr; a full disk behind these is no error."""

import sys
import traceback
from contextlib import suppress


def say(line: str) -> None:
    """Write a line to stderr, if it takes one."""
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")


def say_traceback(error: BaseException) -> None:
    """Write an error's traceback to stderr, if it takes one."""
    with suppress(OSError):
        traceback.print_exception(error)


def flush() -> None:
    """Send off what waits in stdout and stderr, as far as it is taken."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
