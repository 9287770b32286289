"""Processes by identity (pid and start time), and trees of them that must be gone."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker.environment import ATTEMPT_MARK

_GONE_STATES = frozenset("ZX")


@dataclass(frozen=True)
class Identity:
    """A process that no later one can be mistaken for; `start` is in clock ticks since boot."""

    pid: int
    start: int

    @classmethod
    def parse(cls, text: str) -> "Identity | None":
        """Read `pid:start`; None when it is not that."""
        pid, _, start = text.partition(":")
        return cls(int(pid), int(start)) if pid.isdigit() and start.isdigit() else None


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    session: int
    start: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold anything
    return _Stat(fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def identify(pid: int) -> Identity | None:
    """Return the identity of a running process; None when there is none."""
    found = _stat(pid)
    return Identity(pid, found.start) if found else None


def is_alive(who: Identity) -> bool:
    """Say whether exactly this process still runs; a zombie does not."""
    found = _stat(who.pid)
    return found is not None and found.start == who.start and found.state not in _GONE_STATES


def tree(root: Identity | None, mark: str) -> set[Identity]:
    """Return what lives of a trainer's tree, whoever its parents are by now.

    Members are the root, everything below it, everything in its session, and every process that
    was started with the attempt's mark in its environment; the marked ones alone where nobody knows
    the root.
    """
    stats = _everything()
    wanted = f"{ATTEMPT_MARK}={mark}".encode()
    members = {pid for pid in stats if _has_mark(pid, wanted)}
    if root is not None:
        members |= _session(root, stats)
    members |= _below(members, stats)
    members.discard(os.getpid())
    return {
        Identity(pid, stats[pid].start)
        for pid in members
        if pid in stats and stats[pid].state not in _GONE_STATES
    }


def _session(root: Identity, stats: dict[int, _Stat]) -> set[int]:
    found = stats.get(root.pid)
    if found is not None and found.start != root.start:  # its number was given to another one
        return set()
    return {pid for pid, stat in stats.items() if root.pid in (pid, stat.session)}


def _everything() -> dict[int, _Stat]:
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {pid: stat for pid in pids if (stat := _stat(pid)) is not None}


def _has_mark(pid: int, wanted: bytes) -> bool:
    try:
        return wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _below(roots: Iterable[int], stats: dict[int, _Stat]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def send(who: Identity, number: signal.Signals) -> None:
    """Signal the process if it is still the same one."""
    if is_alive(who):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(who.pid, number)


def kill_tree(root: Identity | None, mark: str, timeout: float = 10.0) -> set[Identity]:
    """Kill the tree until nothing is left; return what withstood `timeout` seconds."""
    deadline = time.monotonic() + timeout
    known: set[Identity] = set()
    while True:
        # A child whose parents are gone is only known from an earlier look.
        known |= tree(root, mark)
        known = {who for who in known if is_alive(who)}
        if not known or time.monotonic() > deadline:
            return known
        for who in known:
            send(who, signal.SIGKILL)
        time.sleep(0.01)
