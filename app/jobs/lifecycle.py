"""States of a job, why it can fail, and `transition`, the only writer of `jobs.status`."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from sqlalchemy import bindparam, text
from sqlalchemy.orm import Session

from app.events.store import append_events
from app.webhooks.outbox import announce_job


class Status(StrEnum):
    """Where a job stands; the last three never change again."""

    QUEUED = "queued"
    PROVISIONING = "provisioning"
    RUNNING = "running"
    FINALIZING = "finalizing"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})
OPEN = frozenset(Status) - TERMINAL

_ENDS = {Status.CANCELLED, Status.FAILED}
LEGAL: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.PROVISIONING, Status.PAUSED} | _ENDS),
    Status.PROVISIONING: frozenset({Status.RUNNING, Status.QUEUED, Status.PAUSED} | _ENDS),
    Status.RUNNING: frozenset({Status.FINALIZING, Status.QUEUED, Status.PAUSED} | _ENDS),
    Status.FINALIZING: frozenset({Status.SUCCEEDED, Status.QUEUED} | _ENDS),
    Status.PAUSED: frozenset({Status.QUEUED} | _ENDS),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
}

Turn = Literal["caller", "owner", "operator"]


class FailureReason(StrEnum):
    """Why an attempt or a job ended badly; `RULES` says what follows."""

    INVALID_SPEC = "invalid_spec"
    INVALID_DATA = "invalid_data"
    DATA_UNAVAILABLE = "data_unavailable"
    MODEL_UNAVAILABLE = "model_unavailable"
    TRAINER_ERROR = "trainer_error"
    OUT_OF_MEMORY = "out_of_memory"
    DIVERGED = "diverged"
    BELOW_GATE = "below_gate"
    DISK_FULL = "disk_full"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    STALLED = "stalled"
    START_TIMEOUT = "start_timeout"
    TIME_LIMIT = "time_limit"
    MACHINE_LOST = "machine_lost"
    NO_CAPACITY = "no_capacity"
    PROVISIONING_FAILED = "provisioning_failed"
    TARGET_MISCONFIGURED = "target_misconfigured"
    STORE_UNAVAILABLE = "store_unavailable"
    INTERNAL = "internal"


@dataclass(frozen=True)
class Rule:
    """Whether an attempt that ended so is followed by another, and whose turn it is if not.

    `machine`: rather the machine's doing than the job's, so the next one had better be another.
    """

    retried: bool
    turn: Turn
    machine: bool = False


RULES: dict[FailureReason, Rule] = {
    FailureReason.INVALID_SPEC: Rule(retried=False, turn="caller"),
    FailureReason.INVALID_DATA: Rule(retried=False, turn="caller"),
    FailureReason.DATA_UNAVAILABLE: Rule(retried=True, turn="owner"),
    FailureReason.MODEL_UNAVAILABLE: Rule(retried=False, turn="caller"),
    FailureReason.TRAINER_ERROR: Rule(retried=False, turn="owner"),
    FailureReason.OUT_OF_MEMORY: Rule(retried=False, turn="owner"),
    FailureReason.DIVERGED: Rule(retried=False, turn="owner"),
    FailureReason.BELOW_GATE: Rule(retried=False, turn="owner"),
    FailureReason.DISK_FULL: Rule(retried=True, turn="operator", machine=True),
    FailureReason.INTERRUPTED: Rule(retried=True, turn="operator"),
    FailureReason.KILLED: Rule(retried=True, turn="owner", machine=True),
    FailureReason.STALLED: Rule(retried=True, turn="owner", machine=True),
    FailureReason.START_TIMEOUT: Rule(retried=True, turn="operator", machine=True),
    FailureReason.TIME_LIMIT: Rule(retried=False, turn="owner"),
    FailureReason.MACHINE_LOST: Rule(retried=True, turn="operator", machine=True),
    FailureReason.NO_CAPACITY: Rule(retried=True, turn="operator"),
    FailureReason.PROVISIONING_FAILED: Rule(retried=True, turn="operator", machine=True),
    FailureReason.TARGET_MISCONFIGURED: Rule(retried=False, turn="operator"),
    FailureReason.STORE_UNAVAILABLE: Rule(retried=True, turn="operator"),
    FailureReason.INTERNAL: Rule(retried=True, turn="operator"),
}


@dataclass(frozen=True)
class Change:
    """What a transition writes besides the status; a field left None is cleared."""

    reason: FailureReason | None = None
    message: str | None = None
    phase: str | None = None
    waiting_for: str | None = None
    retry_after: float | None = None
    data: dict[str, Any] | None = None


_TRANSITION = text(
    """
    UPDATE jobs SET status = :to, phase = :phase, reason = :reason, message = :message,
        waiting_for = :waiting_for, updated_at = now(),
        not_before = CASE WHEN CAST(:retry_after AS float) IS NULL THEN NULL
            ELSE now() + CAST(:retry_after AS float) * interval '1 second' END,
        started_at = CASE WHEN :to = 'running' THEN coalesce(started_at, now()) ELSE started_at END,
        finished_at = CASE WHEN :terminal THEN now() END
    WHERE id = :job_id AND status IN :sources
    RETURNING project_id
    """
).bindparams(bindparam("sources", expanding=True))


def transition(
    session: Session,
    job_id: str,
    to: Status,
    change: Change | None = None,
    *,
    sources: Iterable[Status] | None = None,
) -> bool:
    """Move the job to `to`; its `status` event and what webhooks are told: in the same transaction.

    `sources` narrows the states that it may come from (default: every legal one). Returns False
    when the job was in none of them: someone else won, nothing was written.
    """
    change = change or Change()
    legal = {s for s in Status if to in LEGAL[s]}
    allowed = legal if sources is None else legal & set(sources)
    row = session.execute(
        _TRANSITION,
        {
            "job_id": job_id,
            "to": to.value,
            "terminal": to in TERMINAL,
            "phase": change.phase,
            "reason": change.reason and change.reason.value,
            "message": change.message,
            "waiting_for": change.waiting_for,
            "retry_after": change.retry_after,
            "sources": [s.value for s in allowed] or [""],
        },
    ).first()
    if row is None:
        return False
    append_events(session, job_id, [{"type": "status", "data": _status_data(to, change)}])
    announce_job(session, row.project_id, job_id, to.value, (change.data or {}).get("model"))
    return True


def _status_data(to: Status, change: Change) -> dict[str, Any]:
    data: dict[str, Any] = {"status": to.value, "phase": change.phase}
    if change.reason:
        data |= {"reason": change.reason.value, "message": change.message}
    return data | (change.data or {})
