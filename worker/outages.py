"""Reads that are begun again while the database or the store is away."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from botocore.exceptions import ParamValidationError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.s3 import REFUSED, StoreUnavailable, caused_by
from worker.durably import is_away

T = TypeVar("T")
_LONGEST_PAUSE = 5.0
_log = logging.getLogger(__name__)


def through_outages(work: Callable[[], T], patience: float) -> T:
    """Return the result of `work()`, which must bear being begun again.

    An attempt or a try of a preparation is worth more than the wait. Raises the last error after
    `patience` seconds, and at once what no wait would change.
    """
    deadline = time.monotonic() + patience
    pause = 0.1
    while True:
        try:
            return work()
        except (StoreUnavailable, DBAPIError, PoolTimeout) as error:
            if not _is_outage(error) or time.monotonic() > deadline:
                raise
            _log.warning("trying again: %s", type(error).__name__)
        time.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
        pause = min(2 * pause, _LONGEST_PAUSE)


def _is_outage(error: Exception) -> bool:
    if isinstance(error, StoreUnavailable):
        wrong = isinstance(error.__cause__, ParamValidationError)
        return not wrong and not caused_by(error, REFUSED)
    return is_away(error)
