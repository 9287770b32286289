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
# own, and the others must come to their turn beside them.
_CLAIM = text(
    """
    WITH due AS (
        SELECT d.id, w.id AS webhook_id FROM webhook_deliveries d
        JOIN webhooks w ON w.id = d.webhook_id
        WHERE d.status = 'pending' AND d.next_at <= now() AND w.active
            AND (w.failures = 0 OR NOT :sound)
            AND (w.lease_expires_at IS NULL OR w.lease_expires_at < now())
            AND NOT EXISTS (SELECT FROM webhook_deliveries e
                WHERE e.webhook_id = d.webhook_id AND e.status = 'pending'
                    AND e.number < d.number AND e.failures < :held_up)
        ORDER BY w.tried_at NULLS FIRST, d.number
        LIMIT 1 FOR NO KEY UPDATE OF w, d SKIP LOCKED
    ), taken AS (
        UPDATE webhooks w SET lease_token = :token, tried_at = now(),
            lease_expires_at = now() + CAST(:lease AS float) * interval '1 second'
        FROM due WHERE w.id = due.webhook_id RETURNING w.id, w.url, w.ciphertext
    )
    SELECT d.id, d.webhook_id, d.project_id, taken.url, taken.ciphertext, d.event, d.body,
        d.failures, :token AS token, extract(epoch FROM now())::bigint AS now
    FROM due JOIN webhook_deliveries d ON d.id = due.id JOIN taken ON taken.id = d.webhook_id
    """
)


def claim(session: Session, *, sound: bool) -> Due | None:
    """Take the delivery whose turn it is; `sound`: only of an endpoint whose last one arrived.

    None when nothing is due.
    """
    values = {
        "token": secrets.token_hex(16),
        "lease": get_settings().lease,
        "held_up": HELD_UP,
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
    WHERE id = :id
    """
)


def settle(session: Session, due: Due, outcome: Outcome) -> None:
    """Write how a try ended; nothing when the lease is another's by now, who tries again."""
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
        next_at = now()
    WHERE id = :id AND webhook_id = :webhook_id AND project_id = :project_id RETURNING 1
    """
)


def again(session: Session, project_id: str, webhook_id: str, delivery_id: str) -> bool:
    """Have a delivery made once more, now; False: there is none."""
    values = {"id": delivery_id, "webhook_id": webhook_id, "project_id": project_id}
    found = session.execute(_AGAIN, values).first() is not None
    session.execute(text("SELECT pg_notify('polar_work', 'webhooks')"))
    return found
