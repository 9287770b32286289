"""Writing facts to a database that may be away: the trainer trains on, the writer tries again."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from app.db import transaction

T = TypeVar("T")
PATIENCE = 86_400.0
_LONGEST_PAUSE = 5.0
_log = logging.getLogger(__name__)


class DatabaseAway(Exception):
    """The database did not come back for as long as the writer may wait."""


def is_away(error: Exception) -> bool:
    """Say whether the error is about the connection, not about what was said over it."""
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, DBAPIError):
        return False
    # 57P0x: shutdown and crash; 53xxx: no resources; 40xxx: deadlock, serialisation;
    # 25P03: we stood still for too long.
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or state is None or state == "25P03":
        return True
    return state[:2] in ("08", "57", "53", "40")


def durably(
    work: Callable[[Session], T],
    *,
    patience: float = PATIENCE,
    give_up: Callable[[], bool] = lambda: False,
) -> T:
    """Do `work` in a transaction, again and again while the database is away; return its result.

    Raises DatabaseAway after `patience` seconds or once `give_up()` says so, and at once whatever
    else `work` raises. `work` must bear being repeated after a commit whose answer was lost.
    """
    deadline = time.monotonic() + patience
    pause = 0.1
    while True:
        try:
            with transaction() as session:
                return work(session)
        except (DBAPIError, PoolTimeout) as error:
            if not is_away(error):
                raise
            if give_up() or time.monotonic() > deadline:
                raise DatabaseAway(str(error.__cause__ or error)) from error
            _log.warning("the database is away, trying again: %s", type(error).__name__)
        time.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
        pause = min(2 * pause, _LONGEST_PAUSE)
