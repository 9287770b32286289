"""The HTTP server: uvicorn, that ends open streams at once when it is told to stop."""

import socket

import uvicorn
from fastapi import FastAPI


class Server(uvicorn.Server):
    """A server whose streams end without an `end` frame at SIGTERM; clients resume elsewhere."""

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the streams, then wait for the other requests as uvicorn does."""
        self._app.state.feed.close()
        await super().shutdown(sockets)
