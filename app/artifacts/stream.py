"""A body from the store on its way to a client, let go as soon as the client is gone."""

import logging
from collections.abc import Generator, Mapping

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.server import break_off
from app.settings import get_settings
from app.store_threads import at_once, each_in_store_thread

_log = logging.getLogger(__name__)


class Stream(Response):
    """Sends blocks as they are read, one ahead of the client at most.

    The connection to the store and the thread that reads it are given back when the body ends, the
    client disconnects, or takes nothing for `POLAR_DOWNLOAD_STALL` seconds.
    """

    def __init__(
        self,
        body: Generator[bytes, None, None],
        status_code: int,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        self.blocks = body
        self.status_code = status_code
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body; raises what reading it raises."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_until_gone, receive, group.cancel_scope)
                if not await self._send(send):
                    await break_off(scope)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await at_once(self.blocks.close)

    async def _send(self, send: Send) -> bool:
        """Return whether the client took it all."""
        head = {"type": "http.response.start", "status": self.status_code}
        await send({**head, "headers": self.raw_headers})
        patience = get_settings().download_stall
        async for block in each_in_store_thread(self.blocks):
            if not block:
                continue
            with anyio.move_on_after(patience) as waited:
                await send({"type": "http.response.body", "body": block, "more_body": True})
            if waited.cancelled_caught:
                _log.warning("a download is broken off: its client took nothing for %g s", patience)
                return False
        await send({"type": "http.response.body", "body": b""})
        return True


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
