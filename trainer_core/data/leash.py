"""A leash for code that others wrote: so much processor time, so much memory, then an exception.

The kernel counts both. Where even the exception cannot be raised, because one step of the
interpreter does not end, the kernel ends the process by the signal `LAST_RESORT`.
"""

import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SECONDS = 5.0
MEMORY = 1 << 30
LAST_RESORT = signal.SIGVTALRM
_LAST_SECONDS = 20.0
_MEASURE_EVERY = 0.5


class TooSlow(Exception):
    """The time is over."""


class _State:
    """What this process knows of itself; changed by its main thread alone."""

    armed = False
    ready = False
    limit = 0
    measured = 0.0


def _ring(number: int, frame: FrameType | None) -> None:
    del number, frame
    if _State.armed:
        _State.armed = False
        raise TooSlow


@contextmanager
def held() -> Iterator[None]:
    """Run the block on the leash: raises TooSlow after `SECONDS` of processor time.

    Memory above `MEMORY` more than the process has is refused, which shows as MemoryError. For the
    main thread alone, which receives signals; raises RuntimeError in others.
    """
    if threading.get_ident() != threading.main_thread().ident:
        raise RuntimeError("only the main thread can be held on a leash")
    if not _State.ready:
        _prepare()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_memory_limit(soft), hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, _LAST_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    _State.armed = True
    try:
        yield
    finally:
        _State.armed = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _prepare() -> None:
    signal.signal(signal.SIGPROF, _ring)
    signal.signal(LAST_RESORT, signal.SIG_DFL)
    _State.ready = True


def _memory_limit(soft: int) -> int:
    """Bytes of private memory that the process may have; measured anew twice a second at most."""
    now = time.monotonic()
    if now - _State.measured > _MEASURE_EVERY:
        _State.measured = now
        _State.limit = _private_bytes() + MEMORY
    return _State.limit if soft == resource.RLIM_INFINITY else min(_State.limit, soft)


def _private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0
