"""One try of a job: reserved, claimed, renewed, ended and released."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from app.attempts.commits import (
    Publication,
    StoredCheckpoint,
    StoredFile,
    commit_checkpoint,
    commit_model,
    finalize,
    mark_purged,
    newest_checkpoints,
)
from app.attempts.endings import (
    UNBEGUN,
    Ending,
    end_attempt,
    expire,
    expired,
    finish,
    release,
)
from app.attempts.facts import (
    EventGap,
    Logged,
    append_log,
    ingest,
    record_handle,
    record_telemetry,
    warn,
)
from app.attempts.store import LeaseLost, hold, lease_seconds, lock
from app.events.store import append_events
from app.holds import store as holds
from app.ids import new_id
from app.jobs.lifecycle import Status, transition
from app.outbox import hint, host_queue


@dataclass(frozen=True)
class Claim:
    """What the holder of a fresh lease needs to know."""

    attempt_id: str
    job_id: str
    project_id: str
    number: int
    token: str
    devices: list[int]


@dataclass(frozen=True)
class Intent:
    """What the job's owner wants by now, and whether the host's operator wants the host back."""

    cancel: bool
    pause: bool = False
    hand_back: bool = False


_RESERVABLE = text(
    """
    SELECT project_id, target FROM jobs
    WHERE id = :job_id AND status = 'queued' AND prepared_key IS NOT NULL
        AND cancel_requested_at IS NULL AND (not_before IS NULL OR not_before <= now())
    FOR NO KEY UPDATE
    """
)
_FREE_DEVICES = text(
    """
    SELECT index FROM devices
    WHERE worker_id = :worker_id AND index IN :indexes AND attempt_id IS NULL
        AND NOT EXISTS (SELECT FROM workers WHERE id = :worker_id AND draining)
    FOR NO KEY UPDATE
    """
).bindparams(bindparam("indexes", expanding=True))
_INSERT = text(
    """
    INSERT INTO attempts
        (id, project_id, job_id, number, target, worker_id, devices, nonce, hinted_at)
    SELECT :id, :project_id, :job_id, 1 + coalesce(max(number), 0), :target, :worker_id, :devices,
        :nonce, now()
    FROM attempts WHERE job_id = :job_id
    RETURNING number
    """
).bindparams(bindparam("devices", type_=JSONB))
_TAKE_DEVICES = text(
    "UPDATE devices SET attempt_id = :id WHERE worker_id = :worker_id AND index IN :indexes"
).bindparams(bindparam("indexes", expanding=True))


def reserve(
    session: Session, job_id: str, worker_id: str, device_indexes: Sequence[int]
) -> str | None:
    """Give a prepared, queued job these devices and hint its host; returns the attempt's id.

    Returns None, having written nothing, when the job cannot start now, or a device is taken or
    held for another project. What is held for the job's own project is used up.
    """
    indexes = list(device_indexes)
    job = session.execute(_RESERVABLE, {"job_id": job_id}).first()
    if job is None:
        return None
    where = {"worker_id": worker_id, "indexes": indexes}
    if len(session.execute(_FREE_DEVICES, where).all()) != len(set(indexes)):
        return None
    if holds.are_held_for_others(session, job.project_id, worker_id, indexes):
        return None
    attempt_id = new_id("att")
    values = {
        "id": attempt_id,
        "project_id": job.project_id,
        "job_id": job_id,
        "target": job.target,
        "worker_id": worker_id,
        "devices": indexes,
        "nonce": secrets.token_hex(16),
    }
    number = session.execute(_INSERT, values).scalar_one()
    session.execute(_TAKE_DEVICES, {"id": attempt_id, **where})
    holds.use(session, worker_id, indexes, attempt_id)
    transition(session, job_id, Status.PROVISIONING)
    data = {"event": "provisioned", "number": number, "worker_id": worker_id, "devices": indexes}
    append_events(session, job_id, [{"type": "attempt", "data": data}], attempt_id)
    if indexes:  # without devices of a host of ours the reconciler itself carries the attempt
        hint(session, job.project_id, host_queue(worker_id), "run", attempt_id)
    return attempt_id


_CLAIM = text(
    """
    UPDATE attempts SET lease_token = :token, nonce = :nonce, claimed_at = now(),
        lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'
    WHERE id = :attempt_id AND worker_id = :worker_id AND (claimed_at IS NULL OR nonce = :nonce)
    RETURNING devices, EXISTS (SELECT FROM workers WHERE id = :worker_id AND draining) AS draining
    """
)


def claim(session: Session, attempt_id: str, worker_id: str, nonce: str) -> Claim | None:
    """Take the attempt's lease; None when it is claimed, over or another host's.

    Claiming again with the same `nonce` is silent, so an answer that was lost can be asked for.
    A cancel, a pause or a drain of the host that came before is met here: the attempt ends without
    having started anything.
    """
    found = lock(session, attempt_id)
    if found is None:
        return None
    held, _ = found
    token = secrets.token_hex(16)
    values = {"attempt_id": attempt_id, "worker_id": worker_id, "nonce": nonce, "token": token}
    row = session.execute(_CLAIM, {**values, "lease": lease_seconds()}).first()
    if row is None:
        return None
    if held.cancel or held.pause or row.draining:
        end_attempt(session, held, UNBEGUN)
        release(session, attempt_id)
        return None
    return Claim(attempt_id, held.job_id, held.project_id, held.number, token, list(row.devices))


_WANTED = """
    jobs.cancel_requested_at IS NOT NULL AS cancel, jobs.pause_requested_at IS NOT NULL AS pause,
    EXISTS (SELECT FROM workers w WHERE w.id = attempts.worker_id AND w.hand_back) AS hand_back
"""
_RENEW = text(
    f"""
    UPDATE attempts SET lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'
    FROM jobs
    WHERE attempts.id = :attempt_id AND lease_token = :token AND attempts.finished_at IS NULL
        AND jobs.id = attempts.job_id
    RETURNING {_WANTED}
    """  # noqa: S608 - constants
)
_INTENT = text(
    f"""
    SELECT {_WANTED}
    FROM attempts JOIN jobs ON jobs.id = attempts.job_id
    WHERE attempts.id = :attempt_id AND lease_token = :token AND attempts.finished_at IS NULL
    """  # noqa: S608 - constants
)


def renew(session: Session, attempt_id: str, token: str) -> Intent:
    """Prolong the lease and learn what is wanted; raises LeaseLost when refused.

    A lease that ran out is prolonged as long as nobody took the attempt over.
    """
    values = {"attempt_id": attempt_id, "token": token, "lease": lease_seconds()}
    row = session.execute(_RENEW, values).first()
    if row is None:
        raise LeaseLost(attempt_id)
    return Intent(**row._mapping)


def intent(session: Session, attempt_id: str, token: str) -> Intent:
    """Learn what is wanted without writing; raises LeaseLost when the lease is not ours."""
    row = session.execute(_INTENT, {"attempt_id": attempt_id, "token": token}).first()
    if row is None:
        raise LeaseLost(attempt_id)
    return Intent(**row._mapping)


def attempts_of(session: Session, job_id: str) -> list[str]:
    """Return the ids of the job's attempts, the first one first."""
    query = text("SELECT id FROM attempts WHERE job_id = :job_id ORDER BY number")
    return list(session.execute(query, {"job_id": job_id}).scalars())


__all__ = [
    "UNBEGUN",
    "Claim",
    "Ending",
    "EventGap",
    "Intent",
    "LeaseLost",
    "Logged",
    "Publication",
    "StoredCheckpoint",
    "StoredFile",
    "append_log",
    "attempts_of",
    "claim",
    "commit_checkpoint",
    "commit_model",
    "expire",
    "expired",
    "finalize",
    "finish",
    "hold",
    "ingest",
    "intent",
    "mark_purged",
    "newest_checkpoints",
    "record_handle",
    "record_telemetry",
    "release",
    "renew",
    "reserve",
    "warn",
]
