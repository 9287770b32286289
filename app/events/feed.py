"""Fan-out of events: one reader of nudges per process, one read per event, bounded queues.

A nudge, or the poll of Postgres that makes up for lost nudges, wakes the job's topic; the topic
reads what is new once, in a thread, and pushes the frames to all its subscribers. No open stream
holds a database connection.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from app.events.cursor import Position
from app.events.frames import Frame, event_frame, progress_frame
from app.events.source import End, JobSource, Page, Source, newest_of
from app.problem import OUTAGES
from app.queue import NUDGE_CHANNEL
from app.settings import Settings

QUEUE_LIMIT = 512
PAGE = 200
READERS = 4
GATHER = 0.05  # seconds; events of all jobs are gathered so long before they are read once
_LONGEST_BACK_OFF = 5.0
_log = logging.getLogger(__name__)
T = TypeVar("T")


class Subscription:
    """One client's bounded queue. `lost` says that it overflowed: read from Postgres again."""

    def __init__(self) -> None:
        self.lost = False
        self.end: End | None = None
        self._queue: deque[Frame] = deque()
        self._changed = asyncio.Event()

    def push(self, frames: Iterable[Frame]) -> None:
        """Queue frames; a client that is too slow loses its queue instead of our memory."""
        self._queue.extend(frames)
        if len(self._queue) > QUEUE_LIMIT:
            self._queue.clear()
            self.lost = True
        self.wake()

    def wake(self) -> None:
        """Have the stream look again."""
        self._changed.set()

    def reset(self) -> None:
        """Forget what is queued: it will be read from Postgres."""
        self._queue.clear()
        self.lost = False

    def take(self) -> list[Frame]:
        """Return and remove all that is queued."""
        frames = list(self._queue)
        self._queue.clear()
        self._changed.clear()
        return frames

    async def wait(self, seconds: float) -> None:
        """Wait for something new, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


@dataclass(eq=False)
class _Topic:
    """What is read once for all its subscribers."""

    source: Source
    position: Position
    progress: dict[str, str] = field(default_factory=dict)
    subscribers: set[Subscription] = field(default_factory=set)
    dirty: bool = False
    task: asyncio.Task[None] | None = None

    def has_moved(self, newest: tuple[Position, str | None] | None) -> bool:
        """Say whether the job differs from what was last read; None means that it is gone."""
        if newest is None:
            return True
        return newest[0] > self.position or newest[1] != self.progress.get(self.source.key)

    def accept(self, page: Page) -> None:
        """Push a page to the subscribers, and what changed in the progress."""
        frames = [event_frame(event) for event in page.events]
        if not page.more:
            changed = page.progress.items() - self.progress.items()
            frames += [progress_frame(job_id, data) for job_id, data in changed]
            self.progress = page.progress
        self.position = page.position
        for subscription in self.subscribers:
            subscription.end = page.end
            if frames or page.end:
                subscription.push(frames)


class Feed:
    """The process's one reader; belongs to the running event loop."""

    def __init__(self, settings: Settings) -> None:
        self.closed = False
        self._settings = settings
        self._topics: dict[str, _Topic] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="events")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Feed"]:
        """Read nudges and poll until the end of the block."""
        self._tasks = [
            asyncio.create_task(self._listen(), name="nudges"),
            asyncio.create_task(self._poll(), name="poll"),
        ]
        try:
            yield self
        finally:
            self.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """End all streams now, without an `end` frame: their clients resume by id elsewhere."""
        self.closed = True
        for topic in self._topics.values():
            for subscription in topic.subscribers:
                subscription.wake()

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking read on one of the feed's own few threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    @contextlib.contextmanager
    def subscribed(
        self, source: Source, newest: Position, progress: Mapping[str, str]
    ) -> Iterator[Subscription]:
        """Yield a queue that gets every event after `newest`, and maybe some before.

        `progress` is what the stream has seen of it, so that only a change is sent.
        """
        topic = self._topics.setdefault(source.key, _Topic(source, newest, dict(progress)))
        subscription = Subscription()
        topic.subscribers.add(subscription)
        try:
            yield subscription
        finally:
            topic.subscribers.discard(subscription)
            if not topic.subscribers and self._topics.get(source.key) is topic:
                del self._topics[source.key]

    # -- reading --------------------------------------------------------------------------------

    def _wake(self, topic: _Topic) -> None:
        topic.dirty = True
        if topic.task is None or topic.task.done():
            topic.task = asyncio.create_task(self._read_new(topic))

    async def _read_new(self, topic: _Topic) -> None:
        is_job = isinstance(topic.source, JobSource)
        while topic.dirty and topic.subscribers:
            if not is_job:
                await asyncio.sleep(GATHER)
            topic.dirty = False
            try:
                page = await self.in_thread(topic.source.read, topic.position, None, PAGE)
            except OUTAGES as error:
                _log.warning("events of %s cannot be read now: %s", topic.source.key, error)
                return  # the poll tries again
            topic.accept(page)
            topic.dirty = topic.dirty or page.more or page.late

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._settings.poll)
            jobs: list[_Topic] = []
            for topic in self._topics.values():
                if isinstance(topic.source, JobSource):
                    jobs.append(topic)
                else:
                    self._wake(topic)
            if jobs:
                await self._poll_jobs(jobs)

    async def _poll_jobs(self, topics: list[_Topic]) -> None:
        try:
            newest = await self.in_thread(newest_of, [topic.source.key for topic in topics])
        except OUTAGES as error:
            _log.warning("jobs cannot be polled now: %s", error)
            return
        for topic in topics:
            if topic.has_moved(newest.get(topic.source.key)):
                self._wake(topic)

    async def _listen(self) -> None:
        back_off = 0.1
        while True:
            try:
                async for job_id in self._nudges():
                    back_off = 0.1
                    self._on_nudge(job_id)
            except (RedisError, OSError) as error:
                _log.warning("no nudges from the broker, polling: %s", error)
            await asyncio.sleep(back_off)
            back_off = min(back_off * 2, _LONGEST_BACK_OFF)

    async def _nudges(self) -> AsyncIterator[str]:
        client = redis.asyncio.Redis.from_url(
            self._settings.broker_url.get_secret_value(),
            socket_connect_timeout=5,
            socket_keepalive=True,
            health_check_interval=30,
        )
        async with client, client.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(NUDGE_CHANNEL)
            async for message in channel.listen():
                yield bytes(message["data"]).decode("ascii", "replace")

    def _on_nudge(self, job_id: str) -> None:
        for topic in self._topics.values():
            if topic.source.key == job_id or not isinstance(topic.source, JobSource):
                self._wake(topic)
