"""Rows of attempts: locks, lease checks and the guarded writes that everything else is built on.

Locks are taken in one order everywhere: job, attempt, devices.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.settings import get_settings

# Takeovers wait until the database has been up for one full lease, so that holders that trained on
# through its absence can renew first. Only the database's clock decides.
LEASE_EXPIRED = (
    "(lease_expires_at < now()"
    " AND pg_postmaster_start_time() < now() - CAST(:lease AS float) * interval '1 second')"
)


class LeaseLost(Exception):
    """The lease token is not, or no longer, the attempt's: stop at once, write nothing."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: the lease is someone else's, or it is over")


@dataclass(frozen=True)
class Held:
    """A job and its attempt, both locked until the transaction ends."""

    job_id: str
    project_id: str
    status: str
    phase: str | None
    cancel: bool
    pause: bool
    max_attempts: int
    spec: dict[str, Any]
    registers: bool
    attempt_id: str
    number: int
    worker_id: str | None
    last_n: int
    log_offset: int
    nonce: str
    log_lines: int = 0
    log_bytes: int = 0


_LOCK_JOB = text(
    """
    SELECT id, project_id, status, phase, cancel_requested_at IS NOT NULL AS cancel,
        pause_requested_at IS NOT NULL AS pause, max_attempts, spec,
        coalesce(resolved #>> '{publish,registry}', spec #>> '{publish,registry}', 'true')::boolean
            AS registers,
        log_lines, log_bytes
    FROM jobs WHERE id = (SELECT job_id FROM attempts WHERE id = :attempt_id)
    FOR NO KEY UPDATE
    """
)
_LOCK_ATTEMPT = text(
    """
    SELECT number, worker_id, last_n, log_offset, nonce, lease_token
    FROM attempts WHERE id = :attempt_id AND finished_at IS NULL
    FOR NO KEY UPDATE
    """
)


def lock(session: Session, attempt_id: str) -> tuple[Held, str | None] | None:
    """Lock a job and its unfinished attempt; returns them with the lease token, or None."""
    job = session.execute(_LOCK_JOB, {"attempt_id": attempt_id}).mappings().first()
    row = session.execute(_LOCK_ATTEMPT, {"attempt_id": attempt_id}).mappings().first()
    if job is None or row is None:
        return None
    held = Held(
        job_id=job["id"],
        project_id=job["project_id"],
        status=job["status"],
        phase=job["phase"],
        cancel=job["cancel"],
        pause=job["pause"],
        max_attempts=job["max_attempts"],
        spec=job["spec"],
        registers=job["registers"],
        attempt_id=attempt_id,
        number=row["number"],
        worker_id=row["worker_id"],
        last_n=row["last_n"],
        log_offset=row["log_offset"],
        nonce=row["nonce"],
        log_lines=job["log_lines"],
        log_bytes=job["log_bytes"],
    )
    return held, row["lease_token"]


def hold(session: Session, attempt_id: str, token: str) -> Held:
    """Lock a job and its attempt for the holder of `token`; raises LeaseLost for anyone else."""
    found = lock(session, attempt_id)
    if found is None or found[1] != token:
        raise LeaseLost(attempt_id)
    return found[0]


_HOST = text(
    """
    SELECT seen_at > now() - CAST(:timeout AS float) * interval '1 second'
    FROM workers WHERE id = :worker_id AND kind = 'host' FOR SHARE
    """
)


def host_is_up(session: Session, worker_id: str | None) -> bool:
    """Say whether this is a host that speaks to us; it stays so until the transaction ends.

    A host that comes back holds its row while it sweeps: this waits for it, and it for this.
    """
    values = {"worker_id": worker_id, "timeout": get_settings().worker_timeout}
    return bool(session.execute(_HOST, values).scalar())


def lease_seconds() -> float:
    """Return how long a lease lasts without being renewed."""
    return get_settings().lease


def wake(session: Session, what: str) -> None:
    """Wake the reconciler after the commit: something may be placed now."""
    session.execute(text("SELECT pg_notify('polar_work', :what)"), {"what": what})
