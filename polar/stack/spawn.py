"""Starting a process that does not outlive its parent."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LEASH = Path(__file__).with_name("leash.py")
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")


@dataclass(frozen=True)
class Command:
    """What to execute: arguments, and the variables added to a minimal environment."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_signal: signal.Signals = signal.SIGTERM


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send `number` to this process as soon as its parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def basic_environment() -> dict[str, str]:
    """Return the variables of this process that carry no secret and every program needs."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def start(command: Command, log: Path) -> subprocess.Popen[bytes]:
    """Start `command` with its output appended to `log`; it dies with the calling thread."""
    log.parent.mkdir(parents=True, exist_ok=True)
    leash = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid())]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*leash, *command.arguments],
            env={**basic_environment(), **command.environment},
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes], command: Command, grace: float = 10.0) -> None:
    """Ask `process` to end, and kill it after `grace` seconds."""
    if process.poll() is None:
        process.send_signal(command.stop_signal)
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(grace)
