"""Rows of webhooks and their deliveries: who sends next, and what came of it.

One sender at a time has an endpoint, by a lease on its row: so its deliveries leave in their order,
and one that answers slowly holds up nobody else's.
"""

import secrets
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.settings import get_settings

GIVEN_UP_HOURS = 24.0
LEAST_TRIES = 10
"""A delivery has failed after so many tries and so many hours, whichever comes later."""

LONGEST_DAYS = 3
"""After so many days a delivery has failed in any case, also one whose turn has never come."""

HELD_UP = 5
"""Tries that later deliveries of an endpoint wait for; then they are tried beside it."""


@dataclass(frozen=True)
class Due:
    """A delivery that its holder, the one with `token`, is to make now."""

    id: str
    webhook_id: str
    project_id: str
    url: str
    ciphertext: bytes
    event: str
    body: str
    failures: int
    token: str
    now: int
    """Seconds since 1970 on the database's clock, the same for every host."""


# Those who were asked longest ago go first: those who answered last time have a courier of their
# own, and the others must come to their turn beside them. Of each endpoint two rows are looked at,
# however many wait: the first in order, and of those beside it the one that is longest due. The
# number of tries stands in the text, as in the indexes' conditions: no index fits a parameter.
_CLAIM = text(
    f"""
    WITH due AS (
        SELECT d.id, w.id AS webhook_id FROM webhooks w CROSS JOIN LATERAL (
            SELECT id, next_at FROM (
                (SELECT id, next_at FROM webhook_deliveries
                    WHERE webhook_id = w.id AND status = 'pending' AND failures < {HELD_UP}
                    ORDER BY number LIMIT 1)
                UNION ALL
                (SELECT id, next_at FROM webhook_deliveries
                    WHERE webhook_id = w.id AND status = 'pending' AND failures >= {HELD_UP}
                    ORDER BY next_at LIMIT 1)
            ) AS heads WHERE next_at <= now() ORDER BY next_at LIMIT 1
        ) AS head JOIN webhook_deliveries d ON d.id = head.id
        WHERE d.status = 'pending' AND d.next_at <= now() AND w.active
            AND (w.failures = 0 OR NOT :sound)
            AND (w.lease_expires_at IS NULL OR w.lease_expires_at < now())
        ORDER BY w.tried_at NULLS FIRST, d.next_at
        LIMIT 1 FOR NO KEY UPDATE OF w, d SKIP LOCKED
    ), taken AS (
        UPDATE webhooks w SET lease_token = :token, tried_at = now(),
            lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'
        FROM due WHERE w.id = due.webhook_id RETURNING w.id, w.url, w.ciphertext
    )
    SELECT d.id, d.webhook_id, d.project_id, taken.url, taken.ciphertext, d.event, d.body,
        d.failures, :token AS token, extract(epoch FROM now())::bigint AS now
    FROM due JOIN webhook_deliveries d ON d.id = due.id JOIN taken ON taken.id = d.webhook_id
    """  # noqa: S608 - constants
)


def claim(session: Session, *, sound: bool) -> Due | None:
    """Take the delivery whose turn it is; `sound`: only of an endpoint whose last one arrived.

    None when nothing is due.
    """
    values = {
        "token": secrets.token_hex(16),
        "lease": get_settings().lease,
        "sound": sound,
    }
    row = session.execute(_CLAIM, values).mappings().first()
    return None if row is None else Due(**{**row, "ciphertext": bytes(row["ciphertext"])})


@dataclass(frozen=True)
class Outcome:
    """How a try ended: an `error`, or none; then it is tried again after `wait` seconds."""

    response_status: int | None = None
    error: str | None = None
    wait: float = 0.0


_GIVE_BACK = text(
    """
    UPDATE webhooks SET lease_token = NULL, lease_expires_at = NULL,
        failures = CASE WHEN :arrived THEN 0 ELSE failures + 1 END
    WHERE id = :webhook_id AND lease_token = :token RETURNING 1
    """
)
_ARRIVED = text(
    """
    UPDATE webhook_deliveries SET status = 'delivered', attempts = attempts + 1, failures = 0,
        response_status = :response_status, error = NULL, failing_since = NULL,
        delivered_at = now()
    WHERE id = :id
    """
)
_FAILED = text(
    """
    UPDATE webhook_deliveries SET attempts = attempts + 1, failures = failures + 1,
        response_status = :response_status, error = :error,
        failing_since = coalesce(failing_since, now()),
        next_at = now() + CAST(:wait AS float) * interval '1 second',
        status = CASE WHEN failures + 1 >= :least AND failing_since
            < now() - CAST(:hours AS float) * interval '1 hour' THEN 'failed' ELSE 'pending' END
    WHERE id = :id AND status = 'pending'
    """
)


def settle(session: Session, due: Due, outcome: Outcome) -> None:
    """Write how a try ended; nothing when the lease is another's by now, who tries again.

    One that was ended meanwhile is not tried again.
    """
    arrived = outcome.error is None
    held = {"webhook_id": due.webhook_id, "token": due.token, "arrived": arrived}
    if session.execute(_GIVE_BACK, held).first() is None:
        return
    values = {"id": due.id, "response_status": outcome.response_status}
    if arrived:
        session.execute(_ARRIVED, values)
        return
    bounds = {"least": LEAST_TRIES, "hours": GIVEN_UP_HOURS}
    session.execute(_FAILED, {**values, **bounds, "error": outcome.error, "wait": outcome.wait})


_AGAIN = text(
    """
    UPDATE webhook_deliveries SET status = 'pending', failures = 0, failing_since = NULL,
        next_at = now(), pending_since = now()
    WHERE id = :id AND webhook_id = :webhook_id AND project_id = :project_id RETURNING 1
    """
)


def again(session: Session, project_id: str, webhook_id: str, delivery_id: str) -> bool:
    """Have a delivery made once more, now; False: there is none."""
    values = {"id": delivery_id, "webhook_id": webhook_id, "project_id": project_id}
    found = session.execute(_AGAIN, values).first() is not None
    session.execute(text("SELECT pg_notify('polar_work', 'webhooks')"))
    return found


# No more at once than a short transaction writes; and whoever works on one of them is not waited
# for.
_GIVE_UP = text(
    f"""
    UPDATE webhook_deliveries SET status = 'failed',
        error = 'given up after {LONGEST_DAYS} days: '
            || coalesce('the last try: ' || error, 'its turn has not come')
    WHERE id IN (SELECT id FROM webhook_deliveries WHERE status = 'pending'
        AND pending_since < now() - interval '{LONGEST_DAYS} days'
        ORDER BY pending_since LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING 1
    """  # noqa: S608 - constants
)


def give_up(session: Session) -> int:
    """End deliveries that have waited for `LONGEST_DAYS`; returns how many of them."""
    return len(session.execute(_GIVE_UP).all())


_DROP = text(
    """
    UPDATE webhook_deliveries SET status = 'failed',
        error = 'not sent: the webhook was switched off; POST …/redeliver sends it'
    WHERE webhook_id = :webhook_id AND status = 'pending'
    """
)


def drop_pending(session: Session, webhook_id: str) -> None:
    """End what a webhook that is switched off was still to be told."""
    session.execute(_DROP, {"webhook_id": webhook_id})
