"""Commands that are told to end: what they have begun is taken back before they do."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from polar.commands.screen import fail

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """Told to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = signal.Signals(number)


@contextmanager
def told_to_end() -> Iterator[None]:
    """Raise Ended in the block for Ctrl-C, SIGTERM and a terminal that is closed, once.

    Those that come later do not disturb the cleaning up. What is ignored already, as under nohup,
    stays so.
    """
    earlier = {each: signal.getsignal(each) for each in SIGNALS}
    heard = [each for each, handler in earlier.items() if handler is not signal.SIG_IGN]

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        raise Ended(number)

    for each in heard:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in heard:
            signal.signal(each, earlier[each])


def ended(end: Ended, what: str) -> SystemExit:
    """Say by what a command was ended and what is left; return what ends it, as shells tell it."""
    code = 128 + end.signal
    with suppress(OSError):  # nobody may be there to read it
        return fail(f"stopped by {end.signal.name}; {what}", code)
    _silence()
    return SystemExit(code)


def _silence() -> None:
    """Have the interpreter's last words go nowhere: the terminal is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
