"""Devices of attempts that are over and whose holder did not give them back.

The holder's trainer may still use them, and only its host can tell. So while the host is up it is
the host that ends what is left there and releases (`worker.sweep`). For a host that is gone the
devices are released here: it gets no attempts, and sweeps before it offers devices again.
"""

import logging

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.attempts.endings import release
from app.attempts.store import LEASE_EXPIRED, host_is_up
from app.events.store import append_events
from app.settings import get_settings

# A host sweeps every second; killing what hangs in a driver may take it some more.
RELEASE_WITHIN = 30.0
UNHEARD = "its host has not yet said that nothing of the attempt runs there any more"
_log = logging.getLogger(__name__)

_LEFT = f"""
    finished_at IS NOT NULL AND released_at IS NULL
    AND (cleanup_error IS NULL OR cleanup_error = :unheard)
    AND (lease_expires_at IS NULL OR {LEASE_EXPIRED})
"""
_FIND = text(f"SELECT id FROM attempts WHERE {_LEFT} ORDER BY id LIMIT 100")  # noqa: S608
_LOCK = text(
    f"""
    SELECT number, worker_id, cleanup_error,
        now() - greatest(lease_expires_at, finished_at)
            > CAST(:within AS float) * interval '1 second' AS late
    FROM attempts WHERE id = :attempt_id AND {_LEFT} FOR NO KEY UPDATE
    """  # noqa: S608 - constants
)
_JOB = text(  # first: locks are taken in the order job, attempt, devices
    """
    SELECT id, finished_at IS NULL AS is_open FROM jobs
    WHERE id = (SELECT job_id FROM attempts WHERE id = :attempt_id) FOR NO KEY UPDATE
    """
)


def unreleased(session: Session) -> list[str]:
    """Return attempts that are over, unreleased and nobody's; pass each to `settle`."""
    return list(session.execute(_FIND, _limits()).scalars())


def settle(session: Session, attempt_id: str) -> bool:
    """Release the attempt if its host is gone; returns whether that was done.

    A host that is up and has not released it within `RELEASE_WITHIN` seconds is named, once: in
    `cleanup_error`, in the log and, while the job goes on, in a warning. The devices stay taken.
    """
    job = session.execute(_JOB, {"attempt_id": attempt_id}).one_or_none()
    row = session.execute(
        _LOCK, {**_limits(), "attempt_id": attempt_id, "within": RELEASE_WITHIN}
    ).first()
    if job is None or row is None:
        return False
    if not host_is_up(session, row.worker_id):
        release(session, attempt_id)
        return True
    if row.late and row.cleanup_error is None:
        release(session, attempt_id, UNHEARD)
        message = (
            f"attempt {row.number} is over, but the host {row.worker_id} keeps its devices: "
            f"{UNHEARD}; look at that host's worker, or restart it"
        )
        _log.warning("%s: %s", attempt_id, message)
        if job.is_open:
            fact = {"type": "warning", "data": {"code": "devices_not_released", "message": message}}
            append_events(session, job.id, [fact], attempt_id)
    return False


def _limits() -> dict[str, float | str]:
    return {"lease": get_settings().lease, "unheard": UNHEARD}
