"""A plan being made under a lease of its own: claimed, renewed, told of, finished."""

import secrets
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from app.attempts.store import LEASE_EXPIRED, LeaseLost, lease_seconds
from app.jobs.lifecycle import RULES, FailureReason
from app.outbox import PREPARE_QUEUE, hint
from app.preparations.room import call_next, has_room, leave_to_others, pass_on
from app.preparations.service import (
    MAX_TRIES,
    PreparationFailure,
    PreparationIntent,
    lock_prepared,
)

_CLAIM = text(
    f"""
    UPDATE plans SET status = 'running', tries = tries + 1, worker_id = :worker_id,
        lease_token = :token,
        lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'
    WHERE id = :id AND expires_at > now()
        AND (status = 'waiting' OR (status = 'running' AND {LEASE_EXPIRED}))
        AND NOT EXISTS (SELECT FROM workers WHERE id = :worker_id AND draining)
    RETURNING tries
    """  # noqa: S608 - constants
)


def claim_plan(session: Session, plan_id: str, worker_id: str) -> str | None:
    """Take the plan's lease and return its token; None when there is nothing to do.

    As `claim_preparation`: so many at once on a host, none on one that is being drained, and at
    most `MAX_TRIES` takeovers.
    """
    if not has_room(session, worker_id):
        leave_to_others(session, "plan", plan_id, worker_id)
        return None
    token = secrets.token_hex(16)
    values = {"id": plan_id, "worker_id": worker_id, "token": token, "lease": lease_seconds()}
    row = session.execute(_CLAIM, values).first()
    if row is None:
        _pass_on(session, plan_id, worker_id)
        return None
    if row.tries > MAX_TRIES:
        message = f"making the plan was lost {MAX_TRIES} times with its worker"
        _fail(session, plan_id, PreparationFailure(FailureReason.MACHINE_LOST, message))
        return None
    return token


_WAITING = text(
    "SELECT project_id FROM plans WHERE id = :id AND status = 'waiting' AND expires_at > now()"
)


def _pass_on(session: Session, plan_id: str, worker_id: str) -> None:
    project_id = session.scalar(_WAITING, {"id": plan_id})
    if project_id is not None:
        pass_on(session, "plan", plan_id, worker_id, project_id)


_WANTED = """
    plans.expires_at <= now() AS cancel,
    EXISTS (SELECT FROM workers w WHERE w.id = plans.worker_id AND w.hand_back) AS hand_back
"""
_OURS = "id = :id AND lease_token = :token AND status = 'running'"
_RENEW = text(
    "UPDATE plans SET lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'"  # noqa: S608
    f" WHERE {_OURS} RETURNING {_WANTED}"
)
_LOOK = text(f"SELECT {_WANTED} FROM plans WHERE {_OURS}")  # noqa: S608 - constants


def renew_plan(session: Session, plan_id: str, token: str) -> PreparationIntent:
    """Prolong the lease and learn whether to stop; raises LeaseLost when refused."""
    values = {"id": plan_id, "token": token, "lease": lease_seconds()}
    return PreparationIntent(**_held(session, _RENEW, values)._mapping)


def plan_intent(session: Session, plan_id: str, token: str) -> PreparationIntent:
    """Learn whether to stop, without writing; raises LeaseLost when the lease is not ours."""
    return PreparationIntent(**_held(session, _LOOK, {"id": plan_id, "token": token})._mapping)


def _held(session: Session, query: Any, values: dict[str, Any]) -> Any:
    row = session.execute(query, values).first()
    if row is None:
        raise LeaseLost(f"plan {values['id']}")
    return row


_ANNOUNCE = text(f"UPDATE plans SET key = :key WHERE {_OURS} RETURNING 1")  # noqa: S608
_ESTIMATE = text(
    f"UPDATE plans SET estimate = :estimate WHERE {_OURS} RETURNING 1"  # noqa: S608
).bindparams(bindparam("estimate", type_=JSONB))
_DONE = text(
    "UPDATE plans SET status = 'done', exact = :exact, finished_at = now()"  # noqa: S608
    f" WHERE {_OURS} RETURNING 1"
).bindparams(bindparam("exact", type_=JSONB))


def announce_plan(session: Session, plan_id: str, token: str, project_id: str, key: str) -> None:
    """Say which prepared data it is about to use, as `preparations.service.announce`."""
    lock_prepared(session, project_id, key)
    _held(session, _ANNOUNCE, {"id": plan_id, "token": token, "key": key})


def keep_estimate(session: Session, plan_id: str, token: str, estimate: dict[str, Any]) -> None:
    """Say what the first rows tell. Raises LeaseLost."""
    _held(session, _ESTIMATE, {"id": plan_id, "token": token, "estimate": estimate})


def finish_plan(session: Session, plan_id: str, token: str, exact: dict[str, Any] | None) -> None:
    """Say what all rows tell; a preview (None) has said what it had to. Raises LeaseLost."""
    _held(session, _DONE, {"id": plan_id, "token": token, "exact": exact})
    _call(session, plan_id)


_AGAIN = text(
    "UPDATE plans SET status = 'waiting', lease_token = NULL, lease_expires_at = NULL,"
    " hinted_at = CASE WHEN :later THEN now() END, tries = tries - :uncounted WHERE id = :id"
    " RETURNING project_id"
)
_TRIES = text(f"SELECT tries FROM plans WHERE {_OURS} FOR NO KEY UPDATE")  # noqa: S608


def fail_plan(session: Session, plan_id: str, token: str, failure: PreparationFailure) -> bool:
    """End a plan that could not be made; returns whether it is tried again. Raises LeaseLost."""
    row = _held(session, _TRIES, {"id": plan_id, "token": token})
    if not RULES[failure.reason].retried or row.tries >= MAX_TRIES:
        _fail(session, plan_id, failure)
        return False
    session.execute(_AGAIN, {"id": plan_id, "later": True, "uncounted": 0})
    call_next(session, plan_id)
    return True


_FAILED = text(
    "UPDATE plans SET status = 'failed', problem = :problem, finished_at = now() WHERE id = :id"
).bindparams(bindparam("problem", type_=JSONB))


def _fail(session: Session, plan_id: str, failure: PreparationFailure) -> None:
    problem = {"reason": failure.reason.value, "message": failure.message}
    session.execute(_FAILED, {"id": plan_id, "problem": problem})
    _call(session, plan_id)


def abandon_plan(session: Session, plan_id: str, token: str) -> None:
    """Let go of a plan because the worker was told to stop; another takes it. Raises LeaseLost."""
    _held(session, _TRIES, {"id": plan_id, "token": token})
    row = session.execute(_AGAIN, {"id": plan_id, "later": False, "uncounted": 1}).one()
    hint(session, row.project_id, PREPARE_QUEUE, "plan", plan_id)
    call_next(session, plan_id)


_PINNED = text(
    """
    SELECT p.job_id, p.project_id FROM preparations p JOIN jobs j ON j.id = p.job_id
    WHERE p.status = 'waiting' AND j.status = 'queued' AND j.spec ->> 'plan_id' = :id
    """
)


def _call(session: Session, plan_id: str) -> None:
    """Call for the jobs that waited for the plan, and for whoever waited for the room."""
    for row in session.execute(_PINNED, {"id": plan_id}).all():
        hint(session, row.project_id, PREPARE_QUEUE, "prepare", row.job_id)
    call_next(session, plan_id)
