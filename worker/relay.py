"""Carries hints from the outbox to the broker, in order and at least once."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Row, text

from app.db import transaction

Send = Callable[[str, str, list[Any]], None]
BATCH = 100
# A batch is given up after so many seconds; each send has the broker's own time limits. What a
# relay that died had taken is taken by another once nobody can be sending it any more.
SEND_FOR, TAKEN_FOR = 5.0, 30.0

_TAKE = text(
    """
    UPDATE outbox SET taken_until = now() + CAST(:taken_for AS float) * interval '1 second'
    WHERE id IN (SELECT id FROM outbox WHERE taken_until IS NULL OR taken_until < now()
        ORDER BY id LIMIT :batch FOR UPDATE SKIP LOCKED)
    RETURNING id, queue, handler, args
    """
)
_SENT = text("DELETE FROM outbox WHERE id = ANY(CAST(:ids AS bigint[]))")
_UNSENT = text("UPDATE outbox SET taken_until = NULL WHERE id = ANY(CAST(:ids AS bigint[]))")


class BrokerAway(Exception):
    """The broker took none of the hints; they stay in the outbox."""


def relay(send: Send, send_for: float = SEND_FOR) -> int:
    """Send up to 100 hints with `send(queue, handler, ids)`; returns how many left.

    No transaction is open meanwhile: a slow broker holds no lock, and nobody's view of the events.
    After `send_for` seconds the rest is left to the next call. A hint is deleted after it was sent:
    a crash between the two sends it again, and the claim in Postgres makes that harmless. Raises
    BrokerAway when not even the first one could be sent.
    """
    taken = _take()
    sent: list[int] = []
    try:
        _send_all(send, taken, sent, time.monotonic() + send_for)
    finally:
        _settle([row.id for row in taken], sent)
    return len(sent)


def _take() -> Sequence[Row[Any]]:
    with transaction() as session:
        rows = session.execute(_TAKE, {"batch": BATCH, "taken_for": TAKEN_FOR}).all()
    return sorted(rows, key=lambda row: int(row.id))


def _send_all(send: Send, hints: Sequence[Row[Any]], sent: list[int], deadline: float) -> None:
    for row in hints:
        try:
            send(row.queue, row.handler, row.args)
        except BrokerAway:
            if not sent:
                raise
            return
        sent.append(row.id)
        if time.monotonic() > deadline:
            return


def _settle(taken: Sequence[int], sent: Sequence[int]) -> None:
    unsent = list(set(taken) - set(sent))
    if not taken:
        return
    with transaction() as session:
        session.execute(_SENT, {"ids": sent})
        session.execute(_UNSENT, {"ids": unsent})
