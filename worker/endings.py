"""From the way a trainer ended to the reason that decides what follows."""

import errno
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.attempts.service import Ending, EventGap
from app.errors import ServiceError
from app.jobs.lifecycle import FailureReason
from app.storage import ChecksumMismatch, ObjectMissing, StoreUnavailable
from trainer_core.data.leash import LAST_RESORT
from trainer_core.errors import TrainerError
from trainer_core.publish.manifest import BrokenFolder
from worker.carrier import LONGEST_TEXT, BrokenEvents
from worker.process import Exit
from worker.redact import Redactor
from worker.target import TargetError

_BY_CODE = {
    64: FailureReason.INVALID_SPEC,
    70: FailureReason.TRAINER_ERROR,
    71: FailureReason.OUT_OF_MEMORY,
    72: FailureReason.DIVERGED,
    73: FailureReason.DISK_FULL,
    75: FailureReason.INTERRUPTED,
    76: FailureReason.BELOW_GATE,
    143: FailureReason.INTERRUPTED,
    -15: FailureReason.INTERRUPTED,
}
_KILLED = frozenset({-9, 137})


@dataclass(frozen=True)
class Said:
    """What the trainer itself said last: its `result` event, or else `exit.json`."""

    reason: str | None
    message: str


def last_words(work: Path, result: dict[str, Any] | None, redactor: Redactor) -> Said | None:
    """Return the trainer's own account of its end; None when it was killed before one.

    `result` was redacted on its way; the file was not.
    """
    if result is not None:
        return Said(result.get("reason"), str(result.get("message") or ""))
    try:
        document = json.loads((work / "exit.json").read_bytes())
        message = redactor.text(str(document.get("message") or ""))[:LONGEST_TEXT]
        return Said(document.get("reason"), message)
    except (OSError, ValueError, AttributeError):
        return None


def ending_of(ended: Exit, said: Said | None, *, oom_killed: bool) -> Ending | None:
    """Return why the attempt failed; None when the trainer succeeded."""
    code = ended.code
    if said is not None and said.reason is None and code in (0, None):
        return None
    if said is not None and said.reason is not None:
        return _told(code, said.message, _known(said.reason), oom_killed=oom_killed)
    if code in _KILLED:
        return _killed(code, oom_killed=oom_killed)
    if code == -LAST_RESORT:
        message = "task.chat_template: the chat template does not end: give another one"
        return Ending("failed", FailureReason.INVALID_SPEC, message, code)
    reason = _BY_CODE.get(code, FailureReason.TRAINER_ERROR) if code else FailureReason.INTERNAL
    if reason is FailureReason.INTERRUPTED:
        return Ending("interrupted", reason, "the trainer was stopped by a signal", code)
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return Ending("failed", reason, f"the trainer ended without a result ({how})", code)


def _told(code: int | None, message: str, reason: FailureReason, *, oom_killed: bool) -> Ending:
    if reason is FailureReason.KILLED and oom_killed:  # one process of several
        return _killed(code, oom_killed=True)
    outcome = "interrupted" if reason is FailureReason.INTERRUPTED else "failed"
    return Ending(outcome, reason, message or f"exit code {code}", code)  # type: ignore[arg-type]


def _killed(code: int | None, *, oom_killed: bool) -> Ending:
    if oom_killed:
        message = "the kernel killed the trainer: the machine's memory is exhausted"
        return Ending("failed", FailureReason.OUT_OF_MEMORY, message, code)
    message = "the trainer was killed by SIGKILL, perhaps for lack of memory"
    return Ending("failed", FailureReason.KILLED, message, code)


def _known(reason: str) -> FailureReason:
    try:
        return FailureReason(reason)
    except ValueError:
        return FailureReason.TRAINER_ERROR


def ending_of_error(error: Exception) -> Ending:
    """Return why an attempt failed by an error on our side of it."""
    reason, message = FailureReason.INTERNAL, f"{type(error).__name__}: {error}"
    match error:
        case TargetError():
            reason, message = error.reason, str(error)
        case TrainerError():
            reason, message = _known(error.reason), error.message
        case StoreUnavailable():
            reason, message = FailureReason.STORE_UNAVAILABLE, error.message
        case ObjectMissing() | ChecksumMismatch():
            reason, message = FailureReason.DATA_UNAVAILABLE, str(error)
        case ServiceError():
            reason, message = FailureReason.INVALID_SPEC, error.message
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason, message = FailureReason.DISK_FULL, f"no space left on the worker: {error}"
        case BrokenEvents() | EventGap() | BrokenFolder():
            reason, message = FailureReason.TRAINER_ERROR, str(error)
    return Ending("failed", reason, message)


def oom_kills() -> int:
    """Return how many processes of our control group the kernel killed for lack of memory."""
    try:
        group = Path("/proc/self/cgroup").read_text(encoding="utf-8").rpartition("::")[2].strip()
        text = Path(f"/sys/fs/cgroup{group}/memory.events").read_text(encoding="utf-8")
    except OSError:
        return 0
    for line in text.splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill":
            return int(count)
    return 0
