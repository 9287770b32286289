"""One client's stream: replay of what is stored, then live frames, and back when it is slow."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.events import frames
from app.events.cursor import Position, encode_position
from app.events.feed import AWAY, Feed, beat_of
from app.events.pace import Pace
from app.events.source import JobSource, Page, Source
from app.events.subscription import Subscription
from app.server import WIRE, WRITE_NOW, break_off
from app.telemetry import STREAM_RESYNCS
from app.wire import PIECE, Wire, cut

# `no-transform` keeps proxies from compressing, X-Accel-Buffering nginx from holding frames back.
HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
_RETRY_READ = 1.0
_log = logging.getLogger(__name__)

Write = Callable[[bytes], Awaitable[None]]


@dataclass
class Stream:
    """What a client asked for, and how far it has got.

    `newest` and `progress` are what was known of the source when the request was checked;
    `expired` says that some of what follows the position is not in this stream any more.
    """

    feed: Feed
    source: Source
    position: Position
    newest: Position
    heartbeat: float
    types: Sequence[str] | None = None
    heartbeat_frame: bytes = frames.HEARTBEAT_COMMENT
    progress: dict[str, str] = field(default_factory=dict)
    expired: bool = False
    key_id: str | None = None

    def __post_init__(self) -> None:
        # Looked at each beat: so that no silence is longer than the heartbeat.
        self._silence = self.heartbeat - beat_of(self.heartbeat)

    def subscribed(self) -> contextlib.AbstractContextManager[Subscription]:
        """Have the feed push to a new queue."""
        return self.feed.subscribed(self.source, self.newest, self.progress, self.key_id)

    async def run(self, queue: Subscription, write: Write) -> None:
        """Write whole frames until the job's end, or until the queue or the feed is left."""
        of_a_job = isinstance(self.source, JobSource)  # its start is 0, as everybody knows
        await write(frames.RETRY if of_a_job else frames.beginning(self._id()))
        if self.expired:
            await write(frames.resync_frame(self._id()))
        while not self._is_over(queue):
            queue.reset()
            await self._replay(queue, write)
            await self._live(queue, write)
            if queue.lost:
                STREAM_RESYNCS.inc()
                await write(frames.resync_frame(self._id()))
            elif queue.end and not self._is_over(queue):
                await write(frames.end_frame(queue.end))
                return

    def _is_over(self, queue: Subscription) -> bool:
        return self.feed.closed or queue.over

    def _id(self) -> str:
        if isinstance(self.source, JobSource):
            return str(self.position[0])
        return encode_position(self.position)

    def _wants(self, kind: str) -> bool:
        return self.types is None or kind in self.types

    async def _replay(self, queue: Subscription, write: Write) -> None:
        """Write what is stored after the position, page by page, at a pace that others can bear."""
        more, pace, clock = True, Pace(), asyncio.get_running_loop().time
        due = clock() + self._silence
        while more:
            page = await self._read(queue, write, pace.page())
            pace.has_read()
            if page is None or self._is_over(queue):
                return
            self.position, more, queue.end = page.position, page.more, page.end
            text = page.body
            if self._wants("progress") and not page.end:
                for job_id, progress in page.progress.items():
                    text += frames.progress_frame(job_id, progress).data.decode()
            if text or clock() > due:  # pages of rare types may be empty
                await write(text.encode() or self.heartbeat_frame)
                due = clock() + self._silence
            if more:
                await pace.rest()

    async def _read(self, queue: Subscription, write: Write, limit: int) -> Page | None:
        """Return the next page, None when the stream is over; writes heartbeats meanwhile."""
        while not self._is_over(queue):
            read = self.feed.read(self.source, self.position, self.types, limit, frames.Form.FRAMES)
            task = asyncio.ensure_future(read)
            try:
                while not (await asyncio.wait({task}, timeout=self._silence))[0]:
                    await write(self.heartbeat_frame)
                return task.result()
            except AWAY:
                # Database or store are away: the stream stays, and says that it lives.
                await write(self.heartbeat_frame)
                await asyncio.sleep(_RETRY_READ)
            finally:
                task.cancel()
        return None

    async def _live(self, queue: Subscription, write: Write) -> None:
        """Write what the feed pushes; all that gathered behind a pending write goes in one."""
        clock = asyncio.get_running_loop().time
        queue.due = clock() + self._silence
        while not (queue.lost or self._is_over(queue)):
            end = queue.end  # before the frames: they may come while it is written
            chunk = b"".join([frame.data for frame in queue.take() if self._is_due(frame)])
            if not chunk:
                if end:
                    return
                if clock() < queue.due:
                    await queue.wait()
                    continue
                chunk = self.heartbeat_frame
            await write(chunk)
            queue.due = clock() + self._silence

    def write_now(
        self, queue: Subscription, write: Callable[[bytes], bool], pushed: frames.Batch
    ) -> bool:
        """Write what the feed pushes while the stream waits; False: it is to be queued."""
        position, data = self.position, pushed.data
        if self.types is None and (pushed.first is None or pushed.first > position):
            self.position = pushed.last or position
        else:
            data = b"".join([frame.data for frame in pushed.frames if self._is_due(frame)])
        if data and not write(data):
            self.position = position
            return False
        if data:
            queue.due = pushed.at + self._silence
        return True

    def _is_due(self, frame: frames.Frame) -> bool:
        if frame.position is not None:
            if frame.position <= self.position:
                return False  # the replay had it
            self.position = frame.position
        return self._wants(frame.type)


class EventStream(Response):
    """A response of server-sent events; leaves the feed as soon as its client has gone.

    Starlette's StreamingResponse costs as much again for each frame, in generators and a task
    group.
    """

    media_type = "text/event-stream"

    def __init__(self, stream: Stream) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames until the stream's end or the client's."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})

        with self._stream.subscribed() as queue:
            if write_now := scope.get(WRITE_NOW):
                queue.direct = partial(self._stream.write_now, queue, write_now)
            leaving = asyncio.create_task(_leave_with_client(receive, queue))
            try:
                async with queue.patience:
                    await self._stream.run(queue, _writer(send, queue, scope.get(WIRE)))
            except TimeoutError:
                _log.warning("a stream is broken off: its client took nothing for a while")
                await break_off(scope)
                return
            finally:
                leaving.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _writer(send: Send, queue: Subscription, wire: Wire | None) -> Write:
    """Write whole frames, no more at once than a client takes in one read."""
    clock = asyncio.get_running_loop().time
    most = wire.piece if wire else PIECE

    async def write(chunk: bytes) -> None:
        for piece in cut(chunk, frames.END, most):
            queue.writing_since = clock()
            if wire:
                await wire.room(len(piece))
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        queue.writing_since = math.inf

    return write


async def _leave_with_client(receive: Receive, queue: Subscription) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    queue.leave()
