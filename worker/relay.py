"""Carries hints from the outbox to the broker, in order and at least once."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

Send = Callable[[str, str, list[Any]], None]
BATCH = 100

_NEXT = text(
    "SELECT id, queue, handler, args FROM outbox ORDER BY id LIMIT :batch FOR UPDATE SKIP LOCKED"
)
_SENT = text("DELETE FROM outbox WHERE id = ANY(CAST(:ids AS bigint[]))")


class BrokerAway(Exception):
    """The broker took none of the hints; they stay in the outbox."""


def relay(session: Session, send: Send) -> int:
    """Send up to 100 hints with `send(queue, handler, ids)`; returns how many left.

    A hint is deleted after it was sent: a crash between the two sends it again, and the claim in
    Postgres makes that harmless. Raises BrokerAway when not even the first one could be sent.
    """
    sent: list[int] = []
    for row in session.execute(_NEXT, {"batch": BATCH}).all():
        try:
            send(row.queue, row.handler, row.args)
        except BrokerAway:
            if not sent:
                raise
            break
        sent.append(row.id)
    if sent:
        session.execute(_SENT, {"ids": sent})
    return len(sent)
