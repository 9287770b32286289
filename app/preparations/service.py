"""A job's data being made ready under a lease of its own: claimed, renewed, finished."""

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from app.attempts.store import LEASE_EXPIRED, LeaseLost, lease_seconds, wake
from app.events.store import append_events
from app.jobs.lifecycle import RULES, Change, FailureReason, Status, transition
from app.outbox import PREPARE_QUEUE, hint
from app.preparations.room import PLANNED, call_next, has_room, leave_to_others, pass_on
from app.settings import get_settings

MAX_TRIES = 3


@dataclass(frozen=True)
class PreparationIntent:
    """Whether the job still wants its data, and whether the operator wants the host back.

    A pause is no matter of its own: the data of a paused job are not wanted now.
    """

    cancel: bool
    hand_back: bool = False
    pause: bool = False


@dataclass(frozen=True)
class PreparationFailure:
    """Why the data could not be made ready."""

    reason: FailureReason
    message: str


_LOCK_JOB = text(
    f"""
    SELECT project_id, phase, status = 'queued' AND cancel_requested_at IS NULL AS wanted,
        status = 'paused' AS paused,
        (not_before IS NULL OR not_before <= now()) AS due,
        {PLANNED.format("jobs")} AS planned
    FROM jobs WHERE id = :job_id FOR NO KEY UPDATE
    """  # noqa: S608 - constants
)
_CLAIM = text(
    f"""
    UPDATE preparations SET status = 'running', tries = tries + 1, worker_id = :worker_id,
        lease_token = :token,
        lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'
    WHERE job_id = :job_id AND (status = 'waiting' OR (status = 'running' AND {LEASE_EXPIRED}))
        AND NOT EXISTS (SELECT FROM workers WHERE id = :worker_id AND draining)
    RETURNING tries
    """  # noqa: S608 - constants
)
_PHASE = text("UPDATE jobs SET phase = :phase, updated_at = now() WHERE id = :job_id")


def claim_preparation(session: Session, job_id: str, worker_id: str) -> str | None:
    """Take the preparation's lease and return its token; None when there is nothing to do.

    A lease that ran out is taken over, at most up to `MAX_TRIES` tries: then the job fails. A host
    that is being drained gets none, and passes the hint on where there is another. One that
    prepares `prepare_slots` jobs gets none either: whichever ends first calls for the next, and
    where another host has room the reconciler sends the hint again at once. A job whose plan is
    being made waits for that: it makes the same data, and calls for the job when it ends.
    """
    job = session.execute(_LOCK_JOB, {"job_id": job_id}).first()
    if job is None or not job.wanted or not job.due or job.planned:
        return None
    token = secrets.token_hex(16)
    if not has_room(session, worker_id):
        leave_to_others(session, "prepare", job_id, worker_id)
        return None
    values = {"job_id": job_id, "worker_id": worker_id, "token": token, "lease": lease_seconds()}
    row = session.execute(_CLAIM, values).first()
    if row is None:
        pass_on(session, "prepare", job_id, worker_id, job.project_id)
        return None
    if row.tries > MAX_TRIES:
        message = f"preparing the data was lost {MAX_TRIES} times with its worker"
        _fail(session, job_id, PreparationFailure(FailureReason.MACHINE_LOST, message))
        return None
    if job.phase != "preparing":  # it was submitted so
        _set_phase(session, job_id, "preparing")
    return token


_WAITING = text(
    """
    UPDATE preparations p SET hinted_at = now() FROM jobs j
    WHERE j.id = p.job_id AND p.status = 'waiting' AND j.status = 'queued'
        AND (j.not_before IS NULL OR j.not_before <= now())
    RETURNING p.job_id, p.project_id
    """
)


def hint_waiting(session: Session) -> None:
    """Hint every preparation that waits: somebody is there again who takes hints."""
    for row in session.execute(_WAITING).all():
        hint(session, row.project_id, PREPARE_QUEUE, "prepare", row.job_id)


def _set_phase(session: Session, job_id: str, phase: str | None) -> None:
    session.execute(_PHASE, {"job_id": job_id, "phase": phase})
    data = {"status": Status.QUEUED.value, "phase": phase}
    append_events(session, job_id, [{"type": "status", "data": data}])


_WANTED = """
    jobs.status <> 'queued' OR jobs.cancel_requested_at IS NOT NULL AS cancel,
    EXISTS (SELECT FROM workers w WHERE w.id = preparations.worker_id AND w.hand_back) AS hand_back
"""
_RENEW = text(
    f"""
    UPDATE preparations SET lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'
    FROM jobs
    WHERE job_id = :job_id AND lease_token = :token AND preparations.status = 'running'
        AND jobs.id = job_id
    RETURNING {_WANTED}
    """  # noqa: S608 - constants
)


def renew_preparation(session: Session, job_id: str, token: str) -> PreparationIntent:
    """Prolong the lease and learn whether to stop; raises LeaseLost when refused."""
    values = {"job_id": job_id, "token": token, "lease": lease_seconds()}
    row = session.execute(_RENEW, values).first()
    if row is None:
        raise LeaseLost(f"preparation of {job_id}")
    return PreparationIntent(**row._mapping)


def prepared_lock(project_id: str, key: str) -> str:
    """Return the name of the lock under which prepared data are announced, or deleted."""
    return f"prepared/{project_id}/{key}"


def lock_prepared(session: Session, project_id: str, key: str) -> None:
    """Wait for a deletion of prepared data that is going on; none begins before the commit."""
    lock = text("SELECT pg_advisory_xact_lock_shared(hashtextextended(:name, 0))")
    session.execute(lock, {"name": prepared_lock(project_id, key)})


_ANNOUNCE = text(
    """
    UPDATE preparations SET key = :key
    WHERE job_id = :job_id AND lease_token = :token AND status = 'running' RETURNING 1
    """
)


def announce(session: Session, job_id: str, token: str, project_id: str, key: str) -> None:
    """Say which prepared data the job is about to use: from the commit on they are not deleted.

    Waits for a deletion that is going on; whether they are there is to be looked up afterwards.
    Raises LeaseLost.
    """
    lock_prepared(session, project_id, key)
    values = {"job_id": job_id, "token": token, "key": key}
    if session.execute(_ANNOUNCE, values).first() is None:
        raise LeaseLost(f"preparation of {job_id}")


_INTENT = text(
    f"""
    SELECT {_WANTED}
    FROM preparations JOIN jobs ON jobs.id = job_id
    WHERE job_id = :job_id AND lease_token = :token AND preparations.status = 'running'
    """  # noqa: S608 - constants
)


def preparation_intent(session: Session, job_id: str, token: str) -> PreparationIntent:
    """Learn whether to stop, without writing; raises LeaseLost when the lease is not ours."""
    row = session.execute(_INTENT, {"job_id": job_id, "token": token}).first()
    if row is None:
        raise LeaseLost(f"preparation of {job_id}")
    return PreparationIntent(**row._mapping)


_HELD = text(
    """
    SELECT tries FROM preparations
    WHERE job_id = :job_id AND lease_token = :token AND status = 'running' FOR NO KEY UPDATE
    """
)
_DONE = text(
    """
    UPDATE preparations SET status = 'done', report = :report, finished_at = now()
    WHERE job_id = :job_id
    """
).bindparams(bindparam("report", type_=JSONB))
_PREPARED = text("UPDATE jobs SET prepared_key = :key, updated_at = now() WHERE id = :job_id")


def _let_go(session: Session, job_id: str, token: str) -> tuple[Any, int]:
    """Lock what is about to end, and call the next; returns the job and the tries."""
    job = session.execute(_LOCK_JOB, {"job_id": job_id}).first()
    row = session.execute(_HELD, {"job_id": job_id, "token": token}).first()
    if job is None or row is None:
        raise LeaseLost(f"preparation of {job_id}")
    call_next(session, job_id)
    return job, row.tries


def finish_preparation(
    session: Session, job_id: str, token: str, key: str, report: dict[str, Any]
) -> None:
    """Say where the prepared data is: the job can be placed. Raises LeaseLost.

    Warnings of the report become events of the job. A job that was paused meanwhile keeps the
    data for later; for one that is over only the preparation itself is closed.
    """
    job, _ = _let_go(session, job_id, token)
    session.execute(_DONE, {"job_id": job_id, "report": report})
    if not (job.wanted or job.paused):
        return
    session.execute(_PREPARED, {"job_id": job_id, "key": key})
    facts = [{"type": "warning", "data": _warning(w)} for w in report.get("warnings", [])]
    append_events(session, job_id, facts)
    if job.wanted:
        _set_phase(session, job_id, None)
        wake(session, "jobs")


def _warning(warning: Any) -> dict[str, Any]:
    return warning if isinstance(warning, dict) else {"code": "data", "message": str(warning)}


_AGAIN = text(
    """
    UPDATE preparations SET status = 'waiting', lease_token = NULL, lease_expires_at = NULL,
        hinted_at = NULL
    WHERE job_id = :job_id
    """
)
_WAIT = text(
    """
    UPDATE jobs SET phase = NULL, waiting_for = :message, updated_at = now(),
        not_before = now() + CAST(:wait AS float) * interval '1 second'
    WHERE id = :job_id
    """
)


def fail_preparation(
    session: Session, job_id: str, token: str, failure: PreparationFailure
) -> bool:
    """End a preparation that did not succeed; returns whether it is tried again. Raises LeaseLost.

    Tried again: `not_before` is set on the job, and the reconciler hints it once that has passed.
    A job that is no longer queued is left as it is; a paused one asks again when it is resumed.
    """
    job, tries = _let_go(session, job_id, token)
    if job.paused:
        session.execute(_AGAIN, {"job_id": job_id})
        return True
    if not job.wanted or not RULES[failure.reason].retried or tries >= MAX_TRIES:
        _fail(session, job_id, failure)
        return False
    session.execute(_AGAIN, {"job_id": job_id})
    wait = get_settings().retry_base * 2 ** (tries - 1)
    message = f"preparing the data again after {failure.reason.value}: {failure.message}"
    session.execute(_WAIT, {"job_id": job_id, "wait": wait, "message": message})
    data = {"code": failure.reason.value, "message": message, "retry_in_seconds": wait}
    append_events(session, job_id, [{"type": "warning", "data": data}])
    wake(session, "preparations")
    return True


_FAILED = text(
    "UPDATE preparations SET status = 'failed', finished_at = now() WHERE job_id = :job_id"
)


def _fail(session: Session, job_id: str, failure: PreparationFailure) -> None:
    session.execute(_FAILED, {"job_id": job_id})
    change = Change(reason=failure.reason, message=failure.message)
    transition(session, job_id, Status.FAILED, change, sources=[Status.QUEUED])


_UNCOUNT = text("UPDATE preparations SET tries = tries - 1 WHERE job_id = :job_id AND tries > 0")


def abandon_preparation(session: Session, job_id: str, token: str) -> None:
    """Close a preparation that nobody waits for any more. Raises LeaseLost.

    A job that waits for it still, because its worker was told to stop, gets a new hint; a paused
    one gets it when it is resumed.
    """
    job, _ = _let_go(session, job_id, token)
    if not (job.wanted or job.paused):
        session.execute(_FAILED, {"job_id": job_id})
        return
    session.execute(_AGAIN, {"job_id": job_id})
    session.execute(_UNCOUNT, {"job_id": job_id})
    if job.paused:
        return
    _set_phase(session, job_id, None)
    hint(session, job.project_id, PREPARE_QUEUE, "prepare", job_id)
