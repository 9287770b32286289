"""How much of a job's log is stored; what comes after that is left out, and said so once."""

from dataclasses import dataclass, field
from typing import Any

from app.attempts.store import Held
from app.settings import Settings

LAST_LINES = 200
RESERVE = 1_000  # lines beyond the quota for what says why a job ended as it did
RESERVE_BYTES = 2**20
_IMPORTANT = frozenset({"warning", "error", "critical"})
Facts = list[dict[str, Any]]


@dataclass
class Admitted:
    """What is stored of a batch, and what the job has logged with it."""

    lines: int
    size: int
    facts: Facts = field(default_factory=list)
    left_out: int = 0
    full: bool = False


def admit(settings: Settings, held: Held, facts: Facts, *, last: bool = False) -> Admitted:
    """Return what of these facts is stored: all but log lines beyond the job's quota.

    Warnings, errors and, with `last`, the last lines are taken from a reserve.
    """
    done = Admitted(held.log_lines, held.log_bytes)
    done.full = warned = _is_full(settings, done)
    ending = len(facts) - LAST_LINES if last else len(facts)
    for place, fact in enumerate(facts):
        if fact["type"] != "log":
            done.facts.append(fact)
            continue
        important = place >= ending or fact["data"].get("level") in _IMPORTANT
        if done.full and not (important and not _is_full(settings, done, reserve=True)):
            done.left_out += 1
            continue
        done.facts.append(fact)
        done.lines += 1
        done.size += len(str(fact["data"].get("message", "")).encode())
        done.full = done.full or _is_full(settings, done)
        if done.full and not warned:
            done.facts.append(_warning(done))
            warned = True
    return done


def _is_full(settings: Settings, done: Admitted, *, reserve: bool = False) -> bool:
    lines, size = settings.log_lines, settings.log_megabytes * 2**20
    if reserve:
        lines, size = lines + RESERVE, size + RESERVE_BYTES
    return done.lines >= lines or done.size >= size


def _warning(done: Admitted) -> dict[str, Any]:
    message = (
        f"this job has logged {done.lines} lines ({done.size / 2**20:.1f} MiB), which is as much "
        f"as is stored: further lines are left out, but for warnings, errors and the last "
        f"{LAST_LINES} of each run; the whole log stays in output.log on the run's host"
    )
    return {"type": "warning", "data": {"code": "log_quota", "message": message}}
