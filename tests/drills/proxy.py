"""A TCP proxy with faults on demand, for whatever talks over the network in the drills.

with Proxy(lambda: ("127.0.0.1", 5432)) as proxy:
    connect_to("127.0.0.1", proxy.port)
    with proxy.toxic("half_open"):
        ...

slow        every piece of data waits `latency` seconds, in both directions
cut         open connections are reset, and so is each new one
half_open   data vanish in both directions, connections stay; they are reset at the end, as
            by a firewall that has forgotten them
reset       open connections are reset once; new ones are served
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

Address = tuple[str, int]
Toxic = Literal["slow", "cut", "half_open", "reset"]
PIECE = 65_536


@dataclass(eq=False)
class _Link:
    """One client's connection and ours to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    lost: bool = False  # data vanished in it

    def reset(self) -> None:
        """End both sides with RST, as a dead peer's kernel does."""
        for writer in (self.client, self.server):
            if writer is not None:
                _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        # The transport's own object has no setsockopt of every option on all platforms.
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass
class Proxy:
    """Listens on `port` of the loopback address and passes on to what `upstream` names."""

    upstream: Callable[[], Address]
    latency: float = 0.1
    host: str = "127.0.0.1"
    port: int = 0
    links: set[_Link] = field(default_factory=set)
    _toxic: Toxic | None = None

    def __enter__(self) -> Self:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((self.host, self.port))
        self.port = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name=f"proxy-{self.port}", daemon=True
        )
        self._thread.start()
        started.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._do(self._reset_all)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @contextlib.contextmanager
    def toxic(self, name: Toxic) -> Iterator[None]:
        """Have this fault for as long as the block lasts."""
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    def begin(self, name: Toxic) -> None:
        """Begin a fault; `end` ends it."""
        self._toxic = None if name == "reset" else name
        if name in ("cut", "reset"):
            self._do(self._reset_all)

    def end(self) -> None:
        """Be an honest proxy again."""
        self._toxic = None
        self._do(self._reset_lost)

    # -- in the loop's thread -------------------------------------------------------------------

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, sock=self._listener, limit=PIECE)
        )
        started.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    def _do(self, action: Callable[[], None]) -> None:
        """Run `action` in the loop's thread and wait for it."""
        done = threading.Event()

        def run() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(10)

    def _reset_all(self) -> None:
        for link in list(self.links):
            link.reset()

    def _reset_lost(self) -> None:
        for link in list(self.links):
            if link.lost:
                link.reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self.links.add(link)
        try:
            await self._link(link, reader)
        except OSError:
            _reset(writer)
        finally:
            self.links.discard(link)

    async def _link(self, link: _Link, reader: asyncio.StreamReader) -> None:
        if self._toxic == "cut":
            link.reset()
            return
        if self._toxic == "half_open":
            link.lost = True
            await reader.read()  # until the reset: nobody answers here
            link.reset()
            return
        answers, link.server = await asyncio.open_connection(*self.upstream())
        async with asyncio.TaskGroup() as both:
            both.create_task(self._pump(link, reader, link.server))
            both.create_task(self._pump(link, answers, link.client))

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                if self._toxic == "slow":
                    await asyncio.sleep(self.latency)
                if self._toxic == "half_open":
                    link.lost = True
                    continue
                writer.write(data)
                await writer.drain()
        if self._toxic == "half_open":
            link.lost = True  # the end of one side does not reach the other either
            return
        with contextlib.suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()
