"""Many clients in one process: opens streams, notes when each event comes, and compares.

    python -m bench.streams_watch

stdin, first line: {"port", "key", "paths": [[path, after], …]}. It prints `ready`. Second line:
{"committed": {path: {seq: time}}}: what each stream must have got; then it waits for the rest,
and prints {"p50", "p99", "lost", "double", "count"} (seconds).
"""

import asyncio
import json
import re
import sys
import time

import uvloop

_ID = re.compile(rb"^id: (\d+)$", re.M)
_PATIENCE = 30.0


class Watcher(asyncio.Protocol):
    """One raw connection that notes the time at which each id comes."""

    def __init__(self, path: str, request: bytes) -> None:
        self.path = path
        self.opened = asyncio.get_running_loop().create_future()
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.seen: list[tuple[bytes, float]] = []
        self._expected: int | None = None
        self._request = request
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        data = self._rest + data
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            self._rest = data
            return
        self._rest = data[end:]
        if not self.opened.done() and b"retry: 2000" in data:
            self.opened.set_result(None)
        self.seen += [(found, now) for found in _ID.findall(data, 0, end)]
        self._check()

    def expect(self, count: int) -> None:
        """Complete when so many events have come."""
        self._expected = count
        self._check()

    def _check(self) -> None:
        enough = self._expected is not None and len(self.seen) >= self._expected
        if enough and not self.complete.done():
            self.complete.set_result(None)


async def watch() -> None:
    """Open all streams, wait for the committed events, and print the comparison."""
    asked = json.loads(sys.stdin.readline())
    loop = asyncio.get_running_loop()
    few = asyncio.Semaphore(20)
    watchers = []

    async def connect(path: str, after: int) -> None:
        request = (
            f"GET {path}?after={after} HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {asked['key']}\r\n\r\n"
        )
        async with few:
            _, watcher = await loop.create_connection(
                lambda: Watcher(path, request.encode()), "127.0.0.1", asked["port"]
            )
            await asyncio.wait_for(watcher.opened, _PATIENCE)
        watchers.append(watcher)

    await asyncio.gather(*(connect(*each) for each in asked["paths"]))
    print("ready", flush=True)
    line = await loop.run_in_executor(None, sys.stdin.readline)
    committed = json.loads(line)["committed"]
    for watcher in watchers:
        watcher.expect(len(committed.get(watcher.path, ())))
    await asyncio.wait([watcher.complete for watcher in watchers], timeout=_PATIENCE)
    print(json.dumps(compare(watchers, committed)), flush=True)


def compare(
    watchers: list[Watcher], committed: dict[str, dict[str, float]]
) -> dict[str, float | int]:
    """Return the latencies of all arrivals, and what was lost or came twice."""
    late: list[float] = []
    lost = double = 0
    for watcher in watchers:
        expected = committed.get(watcher.path, {})
        got = [found.decode() for found, _ in watcher.seen]
        lost += len(expected.keys() - set(got))
        double += len(got) - len(set(got))
        late += [at - expected[found.decode()] for found, at in watcher.seen]
    late.sort()
    return {
        "p50": late[len(late) // 2],
        "p99": late[int(len(late) * 0.99)],
        "lost": lost,
        "double": double,
        "count": len(late),
    }


if __name__ == "__main__":
    uvloop.run(watch())
