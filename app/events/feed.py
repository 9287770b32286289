"""Fan-out of events: one reader per process, each event read and encoded once, bounded queues.

A nudge, or the poll of Postgres that makes up for lost nudges, marks a topic; the reader reads what
is new in all marked jobs with one statement and pushes the frames to their subscribers. No open
stream holds a database connection.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from app.db import LoopStatements
from app.errors import Unavailable
from app.events import reader
from app.events.archive import get_archive
from app.events.cursor import Position
from app.events.frames import End, Form, Frame, batch, progress_frame
from app.events.live import News, newest_of, read_new
from app.events.nudges import listen
from app.events.source import JobSource, Page, Source, Types
from app.events.subscription import Subscription
from app.keys.store import live_keys
from app.problem import OUTAGES
from app.settings import Settings
from app.telemetry import STREAMS

PAGE = 500
THREADS = 4
CONNECTIONS = 3
AGAIN = 1.0  # seconds before work that failed is begun again
GATHER = 0.05  # seconds; events of all jobs are gathered so long before they are read once
AWAY: tuple[type[Exception], ...] = (*OUTAGES, *reader.AWAY, Unavailable)
_log = logging.getLogger(__name__)
T = TypeVar("T")
_Task = asyncio.Task[None]


@dataclass(eq=False)
class _Topic:
    """What is read once for all its subscribers."""

    source: Source
    position: Position
    progress: dict[str, str] = field(default_factory=dict)
    subscribers: set[Subscription] = field(default_factory=set)

    def has_moved(self, newest: tuple[Position, str | None] | None) -> bool:
        """Say whether the job differs from what was last read; None means that it is gone."""
        if newest is None:
            return True
        return newest[0] > self.position or newest[1] != self.progress.get(self.source.key)

    def accept(self, news: News | Page) -> None:
        """Push what is new to the subscribers, and what changed in the progress."""
        frames: list[Frame] = news.frames
        if not news.more:
            changed = news.progress.items() - self.progress.items()
            frames += [progress_frame(job_id, data) for job_id, data in changed]
            self.progress = news.progress
        self.position = news.position
        self.push(frames, news.end)

    def push(self, frames: Sequence[Frame], end: End | None) -> None:
        """Push frames to all subscribers; `end` says that the job is over with them."""
        pushed = batch(frames, asyncio.get_running_loop().time())
        for subscription in self.subscribers:
            subscription.end = end
            if frames or end:
                subscription.push(pushed)

    def start_over(self, position: Position) -> None:
        """Have every subscriber read on from what is stored."""
        self.position = position
        for subscription in self.subscribers:
            subscription.lost = True
            subscription.wake()


class Feed:
    """The process's one reader; belongs to the running event loop."""

    def __init__(self, settings: Settings) -> None:
        self.closed = False
        self._settings = settings
        self._topics: dict[str, _Topic] = {}
        self._dirty: dict[str, None] = {}
        self._marked = asyncio.Event()
        self._nudged = asyncio.Event()
        self._reader = reader.Reader(settings)
        self._statements = LoopStatements(settings, CONNECTIONS)
        self._tasks: set[_Task] = set()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="events")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Feed"]:
        """Read nudges and poll until the end of the block."""
        url = self._settings.broker_url.get_secret_value()
        listening = partial(listen, url, self._on_nudge)
        for work in (listening, self._read_jobs, self._read_projects, self._poll, self._beat):
            self._start(work)
        try:
            yield self
        finally:
            self.close()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._threads.shutdown(wait=False, cancel_futures=True)
            await self._statements.close()
            await self._reader.close()

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]], pause: float = 0.0) -> None:
        """Do work for as long as the feed is open; whatever it fails with, it is begun again."""
        task = asyncio.create_task(_after(pause, work))
        self._tasks.add(task)
        task.add_done_callback(partial(self._begin_again, work))

    def _begin_again(self, work: Callable[[], Coroutine[Any, Any, None]], task: _Task) -> None:
        self._tasks.discard(task)
        if self.closed or task.cancelled():
            return
        _log.error("a reader of events failed; it begins again", exc_info=task.exception())
        self._start(work, AGAIN)

    def close(self) -> None:
        """End all streams now, without an `end` frame: their clients resume by id elsewhere."""
        self.closed = True
        for subscription in self._subscriptions():
            subscription.leave()

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run what waits for the object store on one of the feed's own few threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def read(
        self, source: Source, after: Position, types: Types, limit: int, form: Form
    ) -> Page:
        """Read a page from Postgres or the archive; raises one of `AWAY`."""
        page = await self.query(source.read, after, types, limit, form)
        if page.ranges:
            return await self.in_thread(get_archive().page, page, types, limit, form)
        return page

    async def query(self, work: Callable[..., T], *arguments: object) -> T:
        """Call `work(session, …)` on one of the feed's own few connections."""
        try:
            async with asyncio.timeout(reader.TIMEOUT):
                return await self._statements.run(work, *arguments)
        except TimeoutError as error:
            message = f"the database gives no answer within {reader.TIMEOUT:.0f} s; try it again"
            raise Unavailable(message, "database_unavailable") from error

    @contextlib.contextmanager
    def subscribed(
        self, source: Source, newest: Position, progress: Mapping[str, str], key_id: str | None
    ) -> Iterator[Subscription]:
        """Yield a queue that gets every event after `newest`, and maybe some before.

        `progress` is what the stream has seen of it, so that only a change is sent. The queue is
        left when the key is revoked.
        """
        topic = self._topics.setdefault(source.key, _Topic(source, newest, dict(progress)))
        subscription = Subscription(key_id)
        topic.subscribers.add(subscription)
        STREAMS.inc()
        try:
            yield subscription
        finally:
            STREAMS.dec()
            topic.subscribers.discard(subscription)
            if not topic.subscribers and self._topics.get(source.key) is topic:
                del self._topics[source.key]

    def _subscriptions(self) -> list[Subscription]:
        return [each for topic in self._topics.values() for each in topic.subscribers]

    def _jobs(self) -> list[_Topic]:
        return [topic for topic in self._topics.values() if isinstance(topic.source, JobSource)]

    def _projects(self) -> list[_Topic]:
        return [topic for topic in self._topics.values() if not isinstance(topic.source, JobSource)]

    # -- reading --------------------------------------------------------------------------------

    def _on_nudge(self, job_id: str) -> None:
        if job_id in self._topics:
            self._mark(job_id)
        self._nudged.set()

    def _mark(self, job_id: str) -> None:
        self._dirty[job_id] = None
        self._marked.set()

    async def _read_jobs(self) -> None:
        """Read all marked jobs with one statement; those marked meanwhile come with the next."""
        while True:
            await self._marked.wait()
            self._marked.clear()
            marked, self._dirty = self._dirty, {}
            topics = {key: self._topics[key] for key in marked if key in self._topics}
            if not topics:
                continue
            after = {key: topic.position[0] for key, topic in topics.items()}
            try:
                found = await read_new(self._reader, after, PAGE)
            except AWAY as error:
                _log.warning("events cannot be read now: %s", error)
                continue  # the poll tries again
            for key, news in found.items():
                self._accept(topics[key], news)

    def _accept(self, topic: _Topic, news: News) -> None:
        if news.archived:
            topic.start_over(news.position)
            return
        topic.accept(news)
        if news.more:
            self._mark(topic.source.key)

    async def _read_projects(self) -> None:
        """Read what is new in projects, gathering for a moment; also once per poll."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll):
                    await self._nudged.wait()
            await asyncio.sleep(GATHER)
            self._nudged.clear()
            for topic in self._projects():
                try:
                    page = await self.query(
                        topic.source.read, topic.position, None, PAGE, Form.FRAMES
                    )
                except AWAY as error:
                    _log.warning("events of %s cannot be read now: %s", topic.source.key, error)
                    break
                topic.accept(page)
                if page.more or page.late:
                    self._nudged.set()

    async def _poll(self) -> None:
        """Make up for lost nudges, and end the streams of revoked keys."""
        while True:
            await asyncio.sleep(self._settings.poll)
            try:
                await self._poll_jobs(self._jobs())
                await self._check_keys()
            except AWAY as error:
                _log.warning("jobs cannot be polled now: %s", error)

    async def _poll_jobs(self, topics: list[_Topic]) -> None:
        if not topics:
            return
        newest = await newest_of(self._reader, [topic.source.key for topic in topics])
        for topic in topics:
            if topic.has_moved(newest.get(topic.source.key)):
                self._mark(topic.source.key)

    async def _check_keys(self) -> None:
        used = {s.key_id for s in self._subscriptions() if s.key_id is not None}
        if not used:
            return
        revoked = used - await self.query(live_keys, used)
        for subscription in self._subscriptions():
            if subscription.key_id in revoked:
                subscription.leave()

    async def _beat(self) -> None:
        """Wake each stream in time for its heartbeat, and let go of clients that take nothing.

        One timer instead of one per frame.
        """
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(beat_of(self._settings.heartbeat))
            now = clock()
            for subscription in self._subscriptions():
                if subscription.due <= now:
                    subscription.wake()
                if subscription.writing_since < now - self._settings.download_stall:
                    subscription.give_up()


async def _after(pause: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.sleep(pause)
    await work()


def beat_of(heartbeat: float) -> float:
    """Return how often streams look at the clock to keep to a heartbeat."""
    return min(1.0, heartbeat / 5)
