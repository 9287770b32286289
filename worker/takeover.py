"""What nobody else would do any more: lost hints, expired leases, wishes that met no holder."""

import contextlib
import time
from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.attempts import overdue, unreleased
from app.attempts.service import UNBEGUN, expire, expired, finish, release
from app.attempts.store import LEASE_EXPIRED, LeaseLost
from app.db import transaction
from app.jobs.lifecycle import Status, transition
from app.outbox import PREPARE_QUEUE, hint, host_queue
from app.settings import get_settings
from worker.loops import Health

# A hint is sent again after `hint_after`, then after twice as long, and so on up to this: a queue
# whose reader is away for hours must not fill with copies.
HINT_AT_MOST = 300.0

_OVERDUE = """
    now() - coalesce({0}.hinted_at, {0}.created_at) > least(
        greatest(coalesce({0}.hinted_at - {0}.created_at, interval '0'),
            CAST(:after AS float) * interval '1 second'),
        CAST(:at_most AS float) * interval '1 second')
"""

_ATTEMPTS = text(
    f"""
    UPDATE attempts SET hinted_at = now() WHERE id IN (
        SELECT a.id FROM attempts a JOIN jobs j ON j.id = a.job_id
        WHERE a.finished_at IS NULL AND a.claimed_at IS NULL AND a.target <> 'fake'
            AND {_OVERDUE.format("a")}
        ORDER BY a.id LIMIT 100 FOR NO KEY UPDATE OF a SKIP LOCKED)
    RETURNING id, project_id, worker_id
    """  # noqa: S608 - constants
)

_PREPARATIONS = text(
    f"""
    UPDATE preparations SET hinted_at = now() WHERE job_id IN (
        SELECT p.job_id FROM preparations p JOIN jobs j ON j.id = p.job_id
        WHERE j.status = 'queued' AND j.cancel_requested_at IS NULL
            AND (j.not_before IS NULL OR j.not_before <= now())
            AND {_OVERDUE.format("p")}
            AND (p.status = 'waiting' OR (p.status = 'running' AND {LEASE_EXPIRED}))
        ORDER BY p.job_id LIMIT 100 FOR NO KEY UPDATE OF p SKIP LOCKED)
    RETURNING job_id, project_id
    """  # noqa: S608 - constants
)

_PLANS = text(
    f"""
    UPDATE plans SET hinted_at = now() WHERE id IN (
        SELECT p.id FROM plans p
        WHERE p.expires_at > now() AND {_OVERDUE.format("p")}
            AND (p.status = 'waiting' OR (p.status = 'running' AND {LEASE_EXPIRED}))
        ORDER BY p.id LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING id, project_id
    """  # noqa: S608 - constants
)


def hint_again(session: Session) -> int:
    """Send hints again that nobody took: reserved attempts, preparations and plans that wait or
    are orphaned."""
    settings = get_settings()
    limits = {"after": settings.hint_after, "at_most": HINT_AT_MOST, "lease": settings.lease}
    attempts = session.execute(_ATTEMPTS, limits).all()
    for row in attempts:
        hint(session, row.project_id, host_queue(row.worker_id), "run", row.id)
    preparations = session.execute(_PREPARATIONS, limits).all()
    for row in preparations:
        hint(session, row.project_id, PREPARE_QUEUE, "prepare", row.job_id)
    plans = session.execute(_PLANS, limits).all()
    for row in plans:
        hint(session, row.project_id, PREPARE_QUEUE, "plan", row.id)
    return len(attempts) + len(preparations) + len(plans)


_TOMBSTONES = text(
    """
    SELECT a.id FROM attempts a JOIN jobs j ON j.id = a.job_id
    LEFT JOIN workers w ON w.id = a.worker_id
    WHERE a.finished_at IS NULL AND a.claimed_at IS NULL
        AND (j.cancel_requested_at IS NOT NULL OR j.pause_requested_at IS NOT NULL OR w.draining)
    ORDER BY a.id LIMIT 100 FOR NO KEY UPDATE OF j SKIP LOCKED
    """
)
_UNSTARTED = text(
    """
    SELECT id FROM jobs WHERE status = 'queued' AND cancel_requested_at IS NOT NULL
    ORDER BY id LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED
    """
)


def meet_requests(session: Session) -> int:
    """End what was cancelled, paused or lost its host to a drain before anybody began with it.

    A later claim finds it over.
    """
    tombstones = list(session.execute(_TOMBSTONES).scalars())
    for attempt_id in tombstones:
        with contextlib.suppress(LeaseLost):  # a claim that came meanwhile has ended it
            finish(session, attempt_id, None, UNBEGUN)
            release(session, attempt_id)
    unstarted = list(session.execute(_UNSTARTED).scalars())
    for job_id in unstarted:
        transition(session, job_id, Status.CANCELLED, sources=[Status.QUEUED])
    return len(tombstones) + len(unstarted)


class Overdue:
    """Ends attempts that nobody begins with, and those whose holder hangs.

    Only what has been overdue for a whole lease, seen from here and without a break: after an
    outage holders speak again first.
    """

    def __init__(
        self, health: Health, lease: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._health = health
        self._lease = lease
        self._clock = clock
        self._since: dict[str, float] = {}

    def look(self) -> int:
        """Look once; returns how many attempts were ended."""
        if not self._health.steady_for(self._lease):
            self._since.clear()
            return 0
        with transaction() as session:
            late = overdue.overdue(session)
        now = self._clock()
        self._since = {each: self._since.get(each, now) for each in late}
        ended = 0
        for attempt_id, since in self._since.items():
            if now - since >= self._lease:
                with transaction() as session:
                    ended += overdue.end_overdue(session, attempt_id) is not None
        return ended


def take_over(health: Health, lease: float) -> int:
    """End attempts whose holder is gone, and give back what a holder on a lost host left behind.

    Waits one full lease after the database was away: holders that worked on renew first.
    """
    if not health.steady_for(lease):
        return 0
    with transaction() as session:
        lost = expired(session)
    taken = 0
    for attempt_id in lost:
        with transaction() as session:
            taken += expire(session, attempt_id) is not None
    with transaction() as session:
        left = unreleased.unreleased(session)
    for attempt_id in left:
        with transaction() as session:
            taken += unreleased.settle(session, attempt_id)
    return taken
