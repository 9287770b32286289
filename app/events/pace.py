"""How fast what is stored is read for one stream: what a page costs, other requests wait for."""

import asyncio
import time

from app import activity

QUIET, SHARED = 500, 100
"""Events a page, while nobody else asks for anything, and while somebody does."""
AT_FULL_SPEED = 10_000
"""Events that are read without a rest, whoever waits: most replays are shorter."""
LONGEST_REST = 0.1
_RESTS = 3  # times as long as a page took


class Pace:
    """Says how much to read at once, and rests between two pages of a long replay."""

    def __init__(self) -> None:
        self._read = 0
        self._began = 0.0
        self._took = 0.0

    def page(self) -> int:
        """Return how many events the next page holds at most; it is read now."""
        self._began = time.monotonic()
        size = SHARED if activity.others_ask() else QUIET
        self._read += size
        return size

    def has_read(self) -> None:
        """Say that the page is there; writing it waits for the client, and costs others nothing."""
        self._took = time.monotonic() - self._began

    async def rest(self) -> None:
        """Leave others three quarters of the time, where there are any, by short rests."""
        if self._read > AT_FULL_SPEED and activity.others_ask():
            since = time.monotonic() - self._began - self._took
            await asyncio.sleep(max(0.0, min(_RESTS * self._took, LONGEST_REST) - since))
