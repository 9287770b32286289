"""The bare fan-out program: one Valkey reader, raw ASGI writes, under the API's own server.

It knows no database, no keys, no replay and no slow clients: what is published goes out.

    python -m bench.streams_bare PORT        (the broker's URL on stdin)
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import redis.asyncio
import uvicorn

from app.server import Protocol

CHANNEL = "bench:bare"
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class FanOut:
    """Clients by path; each message on the channel is a path, a line break and a frame."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._clients: dict[str, set[Send]] = defaultdict(set)
        self._reader: asyncio.Task[None] | None = None

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send
    ) -> None:
        if scope["type"] != "http":
            return
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"retry: 2000\n\n", "more_body": True})
        clients = self._clients[scope["path"]]
        clients.add(send)
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            clients.discard(send)

    async def _read(self) -> None:
        client = redis.asyncio.Redis.from_url(self._broker)
        async with client, client.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(CHANNEL)
            async for message in channel.listen():
                path, _, frame = message["data"].partition(b"\n")
                for send in list(self._clients[path.decode()]):
                    await send({"type": "http.response.body", "body": frame, "more_body": True})


def main() -> None:
    """Serve until SIGTERM."""
    app = FanOut(sys.stdin.readline().strip())
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
    )


if __name__ == "__main__":
    main()
