"""The feed's own connection to Postgres, on the event loop and in the driver's own form.

What is new is asked for hundreds of times a second: a session and a greenlet around each statement
cost ten times as much as the statement.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import psycopg
from sqlalchemy import make_url

from app.settings import Settings

TIMEOUT = 30.0
AWAY: tuple[type[Exception], ...] = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    TimeoutError,
)
Rows = list[tuple[Any, ...]]


class Reader:
    """One connection, made when it is needed and again after it broke; one statement at a time."""

    def __init__(self, settings: Settings) -> None:
        url = make_url(settings.database_url.get_secret_value()).set(drivername="postgresql")
        self._url = url.render_as_string(hide_password=False)
        self._connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._turn = asyncio.Lock()

    async def fetch(self, query: str, values: Mapping[str, Any]) -> Rows:
        """Return the rows of a statement that only reads; raises one of `AWAY`."""
        async with self._turn, asyncio.timeout(TIMEOUT):
            whole = False
            try:
                connection = self._connection or await self._connect()
                cursor = await connection.execute(query, values, prepare=True)
                rows = await cursor.fetchall()
                whole = True
            finally:
                if not whole:  # also after a cancellation: what is under way belongs to nobody
                    await self.close()
        return rows

    async def _connect(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        self._connection = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, connect_timeout=10, application_name="polar events"
        )
        return self._connection

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
