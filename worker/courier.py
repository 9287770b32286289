"""Carries deliveries to webhooks: signed, at least once, one at a time for each endpoint."""

import logging
import random

from app.db import transaction
from app.errors import Unavailable
from app.settings import Settings
from app.webhooks import store
from app.webhooks.post import PATIENCE, post
from app.webhooks.service import secret_of
from app.webhooks.signing import signature
from app.webhooks.store import Due, Outcome

LONGEST_BACKOFF = 3600.0
_OK = range(200, 300)
_REDIRECTS = range(300, 400)
_log = logging.getLogger(__name__)


def backoff(base: float, failures: int) -> float:
    """Return the seconds until the next try: ever longer, and never the same for two endpoints."""
    own: float = min(base * 2.0 ** min(failures, 20), LONGEST_BACKOFF)
    return own * random.uniform(1.0, 1.25)  # noqa: S311 - nobody guards anything with it


class Courier:
    """Makes deliveries that are due; `sound`: only to endpoints that took the last one.

    One of these is kept free of endpoints that do not answer, so that they hold up nobody.
    """

    def __init__(self, settings: Settings, *, sound: bool, patience: float = PATIENCE) -> None:
        self._settings = settings
        self._sound = sound
        self._patience = patience

    def deliver_next(self) -> int:
        """Make the delivery that is due; 0 when none is."""
        with transaction() as session:
            due = store.claim(session, sound=self._sound)
        if due is None:
            return 0
        outcome = self._outcome(due)
        if outcome.error is not None:
            fields = {"webhook_id": due.webhook_id, "error": outcome.error}
            _log.info("delivery %s failed", due.id, extra={"fields": fields})
        with transaction() as session:
            store.settle(session, due, outcome)
        return 1

    def _outcome(self, due: Due) -> Outcome:
        wait = backoff(self._settings.retry_base, due.failures)
        try:
            secret = secret_of(due.project_id, due.webhook_id, due.ciphertext)
        except Unavailable as error:
            return Outcome(error=error.message, wait=wait)
        answer = post(due.url, _headers(due, secret), due.body.encode(), self._patience)
        if answer.status is None:
            return Outcome(error=answer.error or "no answer", wait=wait)
        if answer.status in _OK:
            return Outcome(answer.status)
        why = "; redirects are not followed" if answer.status in _REDIRECTS else ""
        return Outcome(answer.status, f"it answered {answer.status}{why}", wait)


def _headers(due: Due, secret: str) -> dict[str, str]:
    return {
        "Content-Type": "application/json; charset=utf-8",
        "User-Agent": "polar-trainer",
        "X-Polar-Event": due.event,
        "X-Polar-Delivery": due.id,
        "X-Polar-Timestamp": str(due.now),
        "X-Polar-Signature": signature(secret, due.now, due.body),
    }
