"""Starting, watching and stopping the stack from outside."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from polar.stack import proctree
from polar.stack.home import Home
from polar.stack.private import private_folder
from polar.stack.state import StackState, last_state, running_state

START_TIMEOUT = 240.0  # seconds; a cold start on two busy cores takes about 30
STOP_TIMEOUT = 120.0
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


def launch(
    home: Home, host: str, auth: Literal["keys", "none"], *, attached: bool
) -> subprocess.Popen[bytes]:
    """Start guard and supervisor; `attached` ties their life to this process.

    Call it only when no stack runs on `home`. Raises StackFailed for a folder that was not restored
    to its end.
    """
    options = {"home": str(home.path), "host": host, "auth": auth}
    return _launch(home, "polar.stack.supervisor", options, attached=attached)


def launch_host(home: Home, *, attached: bool) -> subprocess.Popen[bytes]:
    """Start guard and supervisor of a host that trains for a service elsewhere.

    Call it only when nothing runs on `home`. The addresses come from the environment.
    """
    return _launch(home, "polar.stack.joined", {"home": str(home.path)}, attached=attached)


def _launch(
    home: Home, module: str, options: Mapping[str, str], *, attached: bool
) -> subprocess.Popen[bytes]:
    if home.restoring.exists():
        raise StackFailed(
            f"a restore into {home.path} did not end: delete that folder and restore again"
        )
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

    Raises StackFailed when it ends or takes longer than START_TIMEOUT.
    """
    deadline = time.monotonic() + START_TIMEOUT
    seen: StackState | None = None
    while time.monotonic() < deadline:
        code = guard.poll()
        state = running_state(home)
        if state is not None and state != seen:
            seen = state
            yield state
            if state.phase == "ready":
                return
        if code is not None:
            raise StackFailed(_reason(home))
        time.sleep(0.1)
    stop(home)
    raise StackFailed(f"not ready after {START_TIMEOUT:.0f} s; see {home.log('stack')}")


def _reason(home: Home) -> str:
    state = last_state(home)
    if state is not None and state.message:
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
    pid = int(state.identity.partition(":")[0])
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
