"""Rows of `hub_pushes`: at most one per job, which says what is to be on the hub next.

A newer checkpoint takes the place of one that has not left yet, and the model that of all. Locks
are taken in one order: the job, then its row here.
"""

import secrets
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError
from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from app.settings import get_settings
from trainer_core.spec import HubPush as Wish

Kind = Literal["checkpoint", "model"]


@dataclass(frozen=True)
class Folder:
    """A whole folder in the store; `step` is that of a checkpoint."""

    kind: Kind
    prefix: str
    manifest_sha256: str
    step: int | None = None


def hub_of(spec: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a job's spec says of a hub, as it was given; None where it names none."""
    return (spec.get("publish") or {}).get("hub")


def wish_of(spec: dict[str, Any]) -> Wish | None:
    """Return where a job's spec wants its model pushed to.

    None where it names no hub, and where this version does not take any more what it says.
    """
    try:
        return Wish.model_validate(hub_of(spec))
    except ValidationError:
        return None


# A checkpoint does not try again what failed for good: the model at the end does, or a person.
_WANT = text(
    """
    INSERT INTO hub_pushes (job_id, project_id, kind, step, prefix, manifest_sha256)
    VALUES (:job_id, :project_id, :kind, :step, :prefix, :manifest_sha256)
    ON CONFLICT (job_id) DO UPDATE SET kind = excluded.kind, step = excluded.step,
        prefix = excluded.prefix, manifest_sha256 = excluded.manifest_sha256,
        state = CASE WHEN excluded.kind = 'checkpoint' AND hub_pushes.state = 'failed'
            THEN 'failed' ELSE 'pending' END,
        message = CASE WHEN excluded.kind = 'checkpoint' AND hub_pushes.state <> 'pushed'
            THEN hub_pushes.message END,
        failures = CASE WHEN excluded.kind = 'model' THEN 0 ELSE hub_pushes.failures END,
        failing_since = CASE WHEN excluded.kind = 'checkpoint' THEN hub_pushes.failing_since END,
        next_at = CASE WHEN excluded.kind = 'checkpoint' THEN hub_pushes.next_at ELSE now() END
    """
)


def want(session: Session, job_id: str, project_id: str, folder: Folder) -> None:
    """Have this folder of the job pushed; the caller holds the job's row."""
    session.execute(_WANT, {"job_id": job_id, "project_id": project_id, **vars(folder)})


@dataclass(frozen=True)
class Due:
    """A push that its holder, the one with `token`, is to make.

    Without a `wish` it cannot be made: this version does not take what the spec says of a hub.
    """

    job_id: str
    project_id: str
    job_name: str
    folder: Folder
    hub: dict[str, Any]
    wish: Wish | None
    failures: int
    token: str


_CLAIM = text(
    """
    UPDATE hub_pushes SET lease_token = :token, leased_prefix = prefix,
        lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'
    WHERE job_id = (
        SELECT job_id FROM hub_pushes
        WHERE state = 'pending' AND next_at <= now()
            AND (lease_expires_at IS NULL OR lease_expires_at < now())
            AND NOT EXISTS (SELECT FROM jobs j
                WHERE j.id = hub_pushes.job_id AND j.cancel_requested_at IS NOT NULL)
        ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING job_id
    """
)
_DUE = text(
    """
    SELECT p.*, j.name, j.spec FROM hub_pushes p JOIN jobs j ON j.id = p.job_id
    WHERE p.job_id = :job_id
    """
)


def claim(session: Session) -> Due | None:
    """Take the push that has waited longest; None when nothing is due."""
    values = {"token": secrets.token_hex(16), "lease": get_settings().lease}
    job_id = session.execute(_CLAIM, values).scalar()
    if job_id is None:
        return None
    row = session.execute(_DUE, {"job_id": job_id}).one()
    return Due(
        job_id=job_id,
        project_id=row.project_id,
        job_name=row.name,
        folder=Folder(row.kind, row.prefix, row.manifest_sha256, row.step),
        hub=hub_of(row.spec) or {},
        wish=wish_of(row.spec),
        failures=row.failures,
        token=row.lease_token,
    )


_RENEW = text(
    """
    UPDATE hub_pushes p
    SET lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'
    FROM jobs j
    WHERE p.job_id = :job_id AND p.lease_token = :token AND p.state = 'pending'
        AND j.id = p.job_id AND j.cancel_requested_at IS NULL
    RETURNING 1
    """
)


def renew(session: Session, due: Due) -> bool:
    """Prolong the lease; False when it is another's by now, or nobody wants the push any more."""
    values = {"job_id": due.job_id, "token": due.token, "lease": get_settings().lease}
    return session.execute(_RENEW, values).first() is not None


_GIVE_BACK = text(
    """
    UPDATE hub_pushes SET lease_token = NULL, lease_expires_at = NULL, leased_prefix = NULL
    WHERE job_id = :job_id AND lease_token = :token
    """
)


def give_back(session: Session, due: Due) -> None:
    """Let another make the push at once."""
    session.execute(_GIVE_BACK, {"job_id": due.job_id, "token": due.token})


# What was wanted meanwhile stays pending, whatever became of what it replaced.
_SETTLE = text(
    """
    UPDATE hub_pushes SET lease_token = NULL, lease_expires_at = NULL, leased_prefix = NULL,
        state = CASE WHEN prefix <> :prefix THEN state
            WHEN CAST(:state AS text) = 'pending' AND failing_since < now()
                - CAST(:days AS float) * interval '1 day' THEN 'failed'
            ELSE :state END,
        commit = coalesce(:commit, commit), message = CASE WHEN prefix = :prefix THEN :message END,
        pushed_at = CASE WHEN CAST(:commit AS text) IS NULL THEN pushed_at ELSE now() END,
        failures = CASE WHEN CAST(:state AS text) = 'pending' AND prefix = :prefix
            THEN failures + 1 ELSE 0 END,
        failing_since = CASE WHEN CAST(:state AS text) = 'pending'
            THEN coalesce(failing_since, now()) END,
        next_at = now() + CAST(:wait AS float) * interval '1 second'
    WHERE job_id = :job_id AND lease_token = :token
    RETURNING state, prefix = :prefix AS is_newest
    """
)
_LOCK_JOB = text("SELECT 1 FROM jobs WHERE id = :job_id FOR NO KEY UPDATE")
GIVEN_UP_DAYS = 7.0


@dataclass(frozen=True)
class Outcome:
    """How a push ended: `pushed` with a commit, `pending` again after `wait` seconds, `failed`."""

    state: Literal["pending", "pushed", "failed"]
    message: str | None = None
    commit: str | None = None
    wait: float = 0.0


def settle(session: Session, due: Due, outcome: Outcome) -> Row[Any] | None:
    """Write how the push ended; returns the row's `state`, and whether this folder `is_newest`.

    None when the lease was lost. What has failed for a week has failed for good.
    """
    session.execute(_LOCK_JOB, {"job_id": due.job_id})
    values = {
        "job_id": due.job_id,
        "token": due.token,
        "prefix": due.folder.prefix,
        "days": GIVEN_UP_DAYS,
        **vars(outcome),
    }
    return session.execute(_SETTLE, values).first()


_DROP = text(
    """
    UPDATE hub_pushes p SET state = 'dropped', lease_token = NULL, lease_expires_at = NULL,
        leased_prefix = NULL, message = 'the job was cancelled'
    FROM jobs j WHERE j.id = p.job_id AND p.state IN ('pending', 'failed')
        AND j.status = 'cancelled'
    RETURNING 1
    """
)


def drop_unwanted(session: Session) -> int:
    """Forget checkpoints of cancelled jobs that have not left yet; returns how many."""
    return len(session.execute(_DROP).all())


_AGAIN = text(
    """
    UPDATE hub_pushes SET state = 'pending', failures = 0, failing_since = NULL, next_at = now(),
        message = NULL
    WHERE job_id = :job_id AND state IN ('failed', 'pending')
    RETURNING 1
    """
)


def again(session: Session, job_id: str) -> bool:
    """Have a push that failed, or that waits for its next try, made now; False: there is none."""
    return session.execute(_AGAIN, {"job_id": job_id}).first() is not None
