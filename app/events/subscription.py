"""One client's bounded queue between the feed, which pushes, and the stream, which sends."""

import asyncio
import math
from collections import deque
from collections.abc import Callable

from app.events.frames import Batch, End, Frame
from app.telemetry import STREAM_DROPS

QUEUE_LIMIT = 512


class Subscription:
    """Frames for one client. `lost` says that it overflowed: read from Postgres again.

    Belongs to the event loop. `over` ends the stream without an `end` frame: its client has gone,
    or its key was revoked. `due` is when the stream wants to be woken at the latest (loop time),
    `writing_since` is when it began to send what the client has not taken yet (inf: nothing).
    `direct` writes frames at once while the stream waits for them: a turn of the loop for each of
    many clients costs as much as the writing. It says whether it did.
    """

    direct: Callable[[Batch], bool] | None = None

    def __init__(self, key_id: str | None = None) -> None:
        self.key_id = key_id
        self.lost = False
        self.over = False
        self.end: End | None = None
        self.due = 0.0
        self.writing_since = math.inf
        self.patience = asyncio.timeout(None)  # ends the stream when `give_up` is called
        self._queue: deque[Frame] = deque()
        self._changed = False
        self._waiter: asyncio.Future[None] | None = None

    def push(self, batch: Batch) -> None:
        """Send or queue frames; a client that is too slow loses its queue, not our memory."""
        if self._is_idle() and self.direct is not None and self.direct(batch):
            return
        self._queue.extend(batch.frames)
        if len(self._queue) > QUEUE_LIMIT:
            STREAM_DROPS.inc(len(self._queue))
            self._queue.clear()
            self.lost = True
        self.wake()

    def _is_idle(self) -> bool:
        waits = self._waiter is not None and not self._waiter.done()
        return waits and not (self._queue or self._changed or self.end or self.lost or self.over)

    def wake(self) -> None:
        """Have the stream look again."""
        self._changed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def leave(self) -> None:
        """End the stream now."""
        self.over = True
        self.wake()

    def give_up(self) -> None:
        """End a stream whose client takes nothing, in the middle of what is being sent."""
        self.writing_since = math.inf
        self.leave()
        self.patience.reschedule(0.0)

    def reset(self) -> None:
        """Forget what is queued: it will be read from Postgres."""
        self._queue.clear()
        self.lost = False

    def take(self) -> list[Frame]:
        """Return and remove all that is queued."""
        frames = list(self._queue)
        self._queue.clear()
        self._changed = False
        return frames

    async def wait(self) -> None:
        """Wait until something was pushed, or somebody woke us: the feed does when it is due.

        No timer of its own: at thousands of frames a second timers are what costs.
        """
        if not self._changed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
