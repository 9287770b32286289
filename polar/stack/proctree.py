"""The tree of processes below one of ours, read from /proc."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ZOMBIE = "Z"


@dataclass(frozen=True)
class Stat:
    """One line of /proc: who a process is, who its parent is and when it started."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    started: int  # clock ticks since the machine's boot

    @property
    def identity(self) -> str:
        """`pid:start`, which no later process can have, unlike the pid alone."""
        return f"{self.pid}:{self.started}"


def read(pid: int) -> Stat | None:
    """Return what /proc says about `pid`, or None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    end = text.rindex(")")  # the name may hold anything, parentheses too
    fields = text[end + 2 :].split()
    name = text[text.index("(") + 1 : end]
    return Stat(pid, name, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def identity(pid: int) -> str:
    """Return `pid:start` of a running process.

    Raises ProcessLookupError when there is none.
    """
    found = read(pid)
    if found is None:
        raise ProcessLookupError(pid)
    return found.identity


def is_alive(identity: str) -> bool:
    """Say whether exactly this process still runs; a zombie does not."""
    pid = identity.partition(":")[0]
    found = read(int(pid)) if pid.isdigit() else None
    return found is not None and found.identity == identity and found.state != _ZOMBIE


def everything() -> list[Stat]:
    """Return every process of the machine."""
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return [found for found in map(read, pids) if found is not None]


def descendants(pid: int) -> list[Stat]:
    """Return the living processes below `pid`, parents before their children."""
    children: dict[int, list[Stat]] = {}
    for each in everything():
        children.setdefault(each.parent, []).append(each)
    found: list[Stat] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.extend(each for each in below if each.state != _ZOMBIE)
        waiting.extend(each.pid for each in below)
    return found


def marked(variable: str, value: str) -> list[Stat]:
    """Return this user's processes that were started with `variable=value`."""
    wanted = f"{variable}={value}".encode()
    found = []
    for each in everything():
        with suppress(OSError):
            if wanted in Path(f"/proc/{each.pid}/environ").read_bytes().split(b"\0"):
                found.append(each)
    return [each for each in found if each.pid != os.getpid() and each.state != _ZOMBIE]


def send(processes: list[Stat], number: signal.Signals) -> None:
    """Signal each process that is still the same one."""
    for each in processes:
        if is_alive(each.identity):
            with suppress(OSError):
                os.kill(each.pid, number)


def kill_below(pid: int, timeout: float = 10.0) -> list[Stat]:
    """Kill everything below `pid` until nothing is left; return what withstood `timeout` s."""
    left = _kill(lambda: descendants(pid), timeout, reap)
    reap()
    return left


def kill_session(session: int, timeout: float = 10.0) -> list[Stat]:
    """Kill what is left below this process of a session; return what withstood `timeout` s."""

    def left() -> list[Stat]:
        return [each for each in descendants(os.getpid()) if each.session == session]

    return _kill(left, timeout)


def _kill(
    look: Callable[[], list[Stat]], timeout: float, collect: Callable[[], None] | None = None
) -> list[Stat]:
    deadline = time.monotonic() + timeout
    left = look()
    while left and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        if collect is not None:
            collect()
        time.sleep(0.02)
        left = look()
    return left


def reap() -> None:
    """Collect every child of this process that has ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def reap_strangers(known: set[int]) -> None:
    """Collect ended children that this process adopted, and leave those it started itself."""
    looking = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, looking)) and ended.si_pid not in known:
            os.waitpid(ended.si_pid, os.WNOHANG)
