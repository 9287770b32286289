"""A run of the trainer on this machine, in a process of its own: its events as frames.

    run = LocalRun.begin(spec, Path("runs/shop"))
    with run.handing_on_signals():
        for frame in run.frames():
            ...
    run.ending()    # exit code, reason, message

The folder is the trainer's (docs/architecture.md): events, checkpoints, model; beside them `job/`
has the spec that `resume` goes on with.
"""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from polar.sse import Frame
from polar.stack.spawn import die_with_parent

INTERRUPTED, DISK_FULL, BAD_SPEC = 75, 73, 64  # of the table in docs/architecture.md
_SECRETS_FD = "POLAR_SECRETS_FD"
_LOOK_EVERY = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


EVENTS, EXIT = "events.jsonl", "exit.json"
_OF_A_RUN = (EVENTS, EXIT, "output.log")
_TRAINED = ("checkpoints", "best", "model")
LOCK = ".run.lock"  # the trainer holds it as long as it runs


class NoRun(Exception):
    """There is no run to go on with, or one is there already; the message says the way out."""


@dataclass(frozen=True)
class Ending:
    """How a run ended: the trainer's exit code (128 + n for a signal) and its own words."""

    code: int
    status: str
    reason: str = ""
    message: str = ""


@dataclass
class LocalRun:
    """One run of the trainer in `folder`."""

    folder: Path
    process: subprocess.Popen[bytes]
    place: int
    last: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, name: str, spec: Mapping[str, Any], folder: Path) -> "LocalRun":
        """Start a run of a spec; raises NoRun where the folder has one already.

        One that was refused before it trained anything is replaced: its spec is what is corrected.
        """
        if _was_refused(folder):
            _clear_refused(folder)
        if (folder / EVENTS).exists() or (folder / "job").exists():
            raise _there_is_one(folder)
        keep_spec(folder, f"{name}.json", spec)
        return cls._start(folder / "job" / f"{name}.json", folder)

    @classmethod
    def resume(cls, folder: Path) -> "LocalRun":
        """Go on from the newest checkpoint of a folder; raises NoRun where none was begun."""
        file = next((folder / "job").glob("*.json"), None)
        if file is None:
            raise NoRun(f"no run was begun in {folder}: leave --resume out and name it by --out")
        (folder / EXIT).unlink(missing_ok=True)  # says how it ended, and it has not any more
        return cls._start(file, folder)

    @classmethod
    def _start(cls, file: Path, folder: Path) -> "LocalRun":
        command = [sys.executable, "-P", "-m", "trainer_core", "run", str(file)]
        secrets = os.environ.get(_SECRETS_FD, "")
        place = _end_of_lines(folder / EVENTS)
        with (folder / "output.log").open("ab") as output:
            process = subprocess.Popen(
                [*command, "--out", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[int(secrets)] if secrets.isdigit() else [],
                start_new_session=True,  # Ctrl-C is for whoever watches; it is handed on
                preexec_fn=_leashed,  # no other thread runs here
            )
        return cls(folder, process, place)

    def frames(self) -> Iterator[Frame]:
        """Yield what the run reports until it has ended, and then an `end` frame."""
        while self.process.poll() is None:
            yield from self._new()
            time.sleep(_LOOK_EVERY)
        yield from self._new()
        ending = self.ending()
        yield Frame(None, {"type": "end", "status": ending.status})

    def _new(self) -> Iterator[Frame]:
        path = self.folder / EVENTS
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self.place)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.place += len(line)
                event = json.loads(line)
                if event["type"] == "result":
                    self.last = event["data"]
                yield Frame(None, event)

    def ending(self) -> Ending:
        """Return how the run ended; waits for that."""
        code = self.process.wait()
        if code < 0:
            return Ending(128 - code, "killed", "killed", f"by {signal.Signals(-code).name}")
        if self.last:
            told = {name: str(self.last.get(name) or "") for name in ("reason", "message")}
            return Ending(code, str(self.last["status"]), **told)
        return Ending(code, "failed", "", self._last_words())

    def _last_words(self) -> str:
        lines = (self.folder / "output.log").read_text("utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    @contextmanager
    def handing_on_signals(self) -> Iterator[None]:
        """Have what ends this process ask the run for a checkpoint; twice: end it at once."""
        earlier = {number: signal.getsignal(number) for number in _SIGNALS}

        def hand_on(number: int, frame: FrameType | None) -> None:
            del number, frame
            if self.process.poll() is None:
                self.process.terminate()

        for number, handler in earlier.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, hand_on)
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)


def _there_is_one(folder: Path) -> NoRun:
    return NoRun(
        f"there is a run in {folder} already: --resume {folder} goes on with it, "
        "--out names another folder"
    )


def keep_spec(folder: Path, name: str, spec: Mapping[str, Any]) -> None:
    """Write what `resume` goes on with, whole or not at all; raises NoRun for the later of two."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".job-", dir=folder) as draft:
        told = json.dumps(spec, indent=2, ensure_ascii=False) + "\n"
        whole = Path(draft) / "job"
        whole.mkdir()
        (whole / name).write_text(told, encoding="utf-8")
        try:
            whole.rename(folder / "job")
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise _there_is_one(folder) from None
            raise


def _leashed() -> None:
    die_with_parent(signal.SIGTERM)  # nobody watches any more: a checkpoint, and the end


def _was_refused(folder: Path) -> bool:
    """Say whether the run in a folder ended for its spec or data, with nothing trained."""
    if any((folder / name).exists() for name in _TRAINED):
        return False
    try:
        document = json.loads((folder / EXIT).read_bytes())
        events = folder / EVENTS
        trained = events.exists() and b'"metrics"' in events.read_bytes()
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("code") == BAD_SPEC and not trained


def _clear_refused(folder: Path) -> None:
    """Remove what a refused run left, unless somebody has taken it up again."""
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = f"{folder} is in use by another run: wait for its end, or name another by --out"
            raise NoRun(told) from None
        if not _was_refused(folder):
            return
        for name in _OF_A_RUN:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "job", ignore_errors=True)


def _end_of_lines(path: Path) -> int:
    """Where the last whole line ends: the trainer cuts off a torn one."""
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
