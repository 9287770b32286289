"""One client's stream: replay from Postgres, then live frames, and back when the client is slow."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from starlette.responses import StreamingResponse
from starlette.types import Send

from app.events import frames
from app.events.cursor import Position, encode_position
from app.events.feed import PAGE, Feed, Subscription
from app.events.source import JobSource, Page, Source
from app.problem import OUTAGES

# `no-transform` keeps proxies from compressing, X-Accel-Buffering nginx from holding frames back.
HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
_RETRY_READ = 1.0

Chunks = AsyncGenerator[bytes, None]


@dataclass
class Stream:
    """What a client asked for, and how far it has got.

    `newest` and `progress` are what was known of the source when the request was checked.
    """

    feed: Feed
    source: Source
    position: Position
    newest: Position
    heartbeat: float
    types: Sequence[str] | None = None
    heartbeat_frame: bytes = frames.HEARTBEAT_COMMENT
    progress: dict[str, str] = field(default_factory=dict)

    async def chunks(self) -> Chunks:
        """Yield whole frames until the job's end, or until the feed is closed."""
        yield frames.RETRY
        with self.feed.subscribed(self.source, self.newest, self.progress) as queue:
            while not self.feed.closed:
                queue.reset()
                async for chunk in self._replay(queue):
                    yield chunk
                async for chunk in self._live(queue):
                    yield chunk
                if queue.lost:
                    yield frames.resync_frame(self._id())
                elif queue.end:
                    yield frames.end_frame(queue.end)
                    return

    def _id(self) -> str:
        if isinstance(self.source, JobSource):
            return str(self.position[0])
        return encode_position(self.position)

    def _wants(self, kind: str) -> bool:
        return self.types is None or kind in self.types

    async def _replay(self, queue: Subscription) -> Chunks:
        """Yield what is stored after the position, page by page."""
        more = True
        while more and not self.feed.closed:
            page = None
            async for page in self._read():
                if page is None:
                    yield self.heartbeat_frame
            if page is None:
                return  # closed
            self.position, more, queue.end = page.position, page.more, page.end
            if chunk := self._encode(page):
                yield chunk

    def _encode(self, page: Page) -> bytes:
        due = [frames.event_frame(event) for event in page.events]
        if self._wants("progress") and not page.end:
            due += [frames.progress_frame(*item) for item in page.progress.items()]
        return b"".join(frame.data for frame in due)

    async def _read(self) -> AsyncGenerator[Page | None, None]:
        """Yield None whenever a heartbeat is due, and at last the page (none when closed)."""
        while not self.feed.closed:
            read = self.feed.in_thread(self.source.read, self.position, self.types, PAGE)
            task = asyncio.ensure_future(read)
            try:
                while not task.done():
                    await asyncio.wait({task}, timeout=self.heartbeat)
                    if not task.done():
                        yield None
                page = task.result()
            except OUTAGES:
                yield None  # the database is away: the stream stays, and says that it lives
                await asyncio.sleep(_RETRY_READ)
            else:
                yield page
                return
            finally:
                task.cancel()

    async def _live(self, queue: Subscription) -> Chunks:
        """Yield what the feed pushes; all that gathered behind a pending write goes in one."""
        clock = asyncio.get_running_loop().time
        due = clock() + self.heartbeat
        while not (self.feed.closed or queue.lost):
            chunk = b"".join(frame.data for frame in queue.take() if self._is_due(frame))
            if not chunk and queue.end:
                return
            if not chunk and clock() >= due:
                chunk = self.heartbeat_frame
            if chunk:
                yield chunk
                due = clock() + self.heartbeat
            else:
                await queue.wait(due - clock())

    def _is_due(self, frame: frames.Frame) -> bool:
        if frame.position is not None:
            if frame.position <= self.position:
                return False  # the replay had it
            self.position = frame.position
        return self._wants(frame.type)


class EventStream(StreamingResponse):
    """A response of server-sent events; leaves the feed as soon as its client has gone."""

    def __init__(self, stream: Stream) -> None:
        self._chunks = stream.chunks()
        super().__init__(self._chunks, headers=HEADERS, media_type="text/event-stream")

    async def stream_response(self, send: Send) -> None:
        """Send the frames, and close the generator whatever happens."""
        async with contextlib.aclosing(self._chunks):
            await super().stream_response(send)
