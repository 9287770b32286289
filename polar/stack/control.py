"""Starting, watching and stopping the stack from outside."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from polar.stack import proctree
from polar.stack.home import HalfRestored, Home, in_use
from polar.stack.ports import LOOPBACK
from polar.stack.private import private_folder
from polar.stack.state import StackState, last_state, pid_of, running_state

START_TIMEOUT = 240.0  # seconds; a cold start on two busy cores takes about 30
STOP_TIMEOUT = 120.0
HELD = 3  # how a supervisor ends whose data folder another process holds
STACK_VARIABLE = "POLAR_STACK_PID"


class StackFailed(Exception):
    """The stack did not start or stop; the message says why."""


def clear_leftovers(home: Home) -> int:
    """End what an earlier stack of this folder left behind; return how many processes."""
    earlier = last_state(home)
    if earlier is None or proctree.is_alive(earlier.identity):
        return 0
    left = proctree.marked(STACK_VARIABLE, earlier.identity)
    proctree.send(left, signal.SIGKILL)
    return len(left)


@dataclass(frozen=True)
class Door:
    """Where the API listens and who may come in; without a port a free one is chosen."""

    host: str = LOOPBACK
    auth: Literal["keys", "none"] = "keys"
    port: int | None = None


def launch(home: Home, door: Door, *, attached: bool) -> subprocess.Popen[bytes]:
    """Start guard and supervisor; `attached` ties their life to this process.

    Call it only when no stack runs on `home`. Raises StackFailed for a folder that was not restored
    to its end.
    """
    options = {"home": str(home.path), **asdict(door)}
    return _launch(home, "polar.stack.supervisor", options, attached=attached)


def launch_host(home: Home, *, attached: bool) -> subprocess.Popen[bytes]:
    """Start guard and supervisor of a host that trains for a service elsewhere.

    Call it only when nothing runs on `home`. The addresses come from the environment.
    """
    return _launch(home, "polar.stack.joined", {"home": str(home.path)}, attached=attached)


def _launch(
    home: Home, module: str, options: Mapping[str, str | int | None], *, attached: bool
) -> subprocess.Popen[bytes]:
    try:
        home.refuse_half_restored()
    except HalfRestored as failure:
        raise StackFailed(str(failure)) from None
    home.lay()
    clear_leftovers(home)
    supervisor = [sys.executable, "-m", module, json.dumps(options)]
    guard = [sys.executable, "-m", "polar.stack.guard", *(["--attached"] if attached else [])]
    private_folder(home.path / "logs")
    with home.log("stack").open("ab") as log:
        return subprocess.Popen(
            [*guard, *supervisor],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home.run,
            start_new_session=True,
            env={**os.environ, "PYTHONUTF8": "1"},
        )


def progress(home: Home, guard: subprocess.Popen[bytes]) -> Iterator[StackState]:
    """Yield each new state until the stack is ready.

    Only of the stack below this guard: another one may have been started at the same moment.
    Raises StackFailed when it ends or takes longer than START_TIMEOUT.
    """
    deadline = time.monotonic() + START_TIMEOUT
    ours = proctree.identity(guard.pid)
    seen: StackState | None = None
    while time.monotonic() < deadline:
        code = guard.poll()
        state = running_state(home)
        if state is not None and state.guard == ours and state != seen:
            seen = state
            yield state
            if state.phase == "ready":
                return
        if code is not None:
            raise StackFailed(_held(home) if code == HELD else _reason(home, ours))
        time.sleep(0.1)
    _end(guard)
    raise StackFailed(f"not ready after {START_TIMEOUT:.0f} s; see {home.log('stack')}")


def _end(guard: subprocess.Popen[bytes]) -> None:
    """Stop the stack below a guard in order, or at least for good."""
    guard.terminate()
    try:
        guard.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        guard.kill()


def _held(home: Home) -> str:
    if who := home.holder():
        return in_use(home.path, who)
    return f"{home.path} was in use by another process a moment ago: try again"


def _reason(home: Home, guard: str) -> str:
    state = last_state(home)
    if state is not None and state.guard == guard and state.message:
        return state.message
    log = home.log("stack")
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join(["the stack ended at once:", *lines[-5:]])


def stop(home: Home, tell: Callable[[StackState], None] = lambda _: None) -> bool:
    """Stop the running stack in order; False when none runs.

    Raises StackFailed when it does not end in time; everything is killed then.
    """
    state = running_state(home)
    if state is None:
        clear_leftovers(home)
        return False
    pid = pid_of(state)
    guard = _guard_of(pid)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT
    while proctree.is_alive(state.identity):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise StackFailed(f"the stack did not stop within {STOP_TIMEOUT:.0f} s and was killed")
        tell(running_state(home) or state)
        time.sleep(0.1)
    wait_gone(guard, deadline)
    return True


def _guard_of(pid: int) -> proctree.Stat | None:
    supervisor = proctree.read(pid)
    parent = proctree.read(supervisor.parent) if supervisor else None
    if parent and b"polar.stack.guard" in Path(f"/proc/{parent.pid}/cmdline").read_bytes():
        return parent
    return None


def wait_gone(process: proctree.Stat | None, deadline: float) -> None:
    """Return when `process` has ended, or at the deadline of the monotonic clock."""
    while process and proctree.is_alive(process.identity) and time.monotonic() < deadline:
        time.sleep(0.05)
