"""Engine and transactions. One request, handler or step = one transaction."""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Dialect, Engine, ExceptionContext, create_engine, event
from sqlalchemy.exc import InvalidatePoolError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from app.queue import nudge
from app.settings import Settings, get_settings

Result = TypeVar("Result")
_LOOP_CONNECTIONS = 8  # more in flight at once only queue up in front of Postgres
_TRUSTED = 1.0  # seconds after its last use in which a connection is taken as alive
# A peer that vanished without a word is given up after about these many seconds, whether we wait
# for its answer (keepalives) or for its acknowledgement.
_VANISHED = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # milliseconds
}


def _options(settings: Settings) -> dict[str, Any]:
    # One that stands still inside a transaction holds its locks against everybody.
    stuck = int(max(settings.lease / 2, 1.0) * 1000)
    return {
        "pool_timeout": 10,
        "hide_parameters": True,  # errors are logged; specs and hashes are not for logs
        "connect_args": {
            "connect_timeout": 10,
            "application_name": "polar",
            "options": f"-c idle_in_transaction_session_timeout={stuck}",
            **_VANISHED,
        },
    }


@lru_cache
def get_engine() -> Engine:
    """The process's engine; the pool holds one connection per request thread at most."""
    settings = get_settings()
    url = settings.database_url.get_secret_value()
    engine = create_engine(url, pool_size=settings.threads, max_overflow=4, **_options(settings))
    _look_after(engine)
    return engine


def _look_after(engine: Engine) -> None:
    event.listen(engine, "checkout", partial(_check_if_idle, engine.dialect))
    event.listen(engine, "checkin", _note_use)
    event.listen(engine, "handle_error", _ended_for_standing_still)


def _ended_for_standing_still(context: ExceptionContext) -> None:
    """Our own limit on idle transactions ends the connection: an outage, whatever psycopg says."""
    error = context.original_exception
    if isinstance(error, psycopg.errors.IdleInTransactionSessionTimeout):
        context.is_disconnect = True
        raise OperationalError(
            context.statement, None, error, hide_parameters=True, connection_invalidated=True
        ) from error


def _check_if_idle(dialect: Dialect, connection: Any, record: ConnectionPoolEntry, _: Any) -> None:
    """Replace connections that broke while they were idle; busy ones need no extra round trip."""
    if time.monotonic() - record.info.get("used", 0.0) < _TRUSTED:
        return
    try:
        dialect.do_ping(connection)
    except psycopg.Error as error:
        raise InvalidatePoolError from error


def _note_use(_: Any, record: ConnectionPoolEntry) -> None:
    record.info["used"] = time.monotonic()


@contextlib.contextmanager
def transaction(engine: Engine | None = None) -> Iterator[Session]:
    """A session that commits at the end and rolls back on an error.

    Jobs named by `touch` are nudged to the stream readers after the commit, never before.
    """
    with Session(engine or get_engine(), expire_on_commit=False) as session, session.begin():
        yield session


@lru_cache
def _autocommit() -> Engine:
    return get_engine().execution_options(isolation_level="AUTOCOMMIT")


@contextlib.contextmanager
def statement() -> Iterator[Session]:
    """A session that commits with each statement: no round trips for BEGIN and COMMIT.

    For work whose only write is a single statement, which is atomic by itself.
    """
    with transaction(_autocommit()) as session:
        yield session


class LoopStatements:
    """`statement()` on the event loop, for what comes in crowds: `POST /jobs`, and live events.

    The work stays synchronous code, in a greenlet that yields to the loop while Postgres works.
    Handing each request to a thread and back costs more than the work itself (ADR 0007).
    """

    def __init__(self, settings: Settings, connections: int = _LOOP_CONNECTIONS) -> None:
        self._engine = create_async_engine(
            settings.database_url.get_secret_value(),
            pool_size=connections,
            max_overflow=0,
            isolation_level="AUTOCOMMIT",
            **_options(settings),
        )
        _look_after(self._engine.sync_engine)

    async def run(self, work: Callable[..., Result], *args: Any) -> Result:
        """Call `work(session, *args)`; it must not block on anything but the database."""
        async with AsyncSession(self._engine, expire_on_commit=False) as session, session.begin():
            return await session.run_sync(work, *args)

    async def close(self) -> None:
        """Close the connections."""
        await self._engine.dispose()


def touch(session: Session, job_id: str) -> None:
    """Remember that the job's events changed: its readers are nudged after the commit."""
    session.info.setdefault("touched", set()).add(job_id)


@event.listens_for(Session, "after_commit")
def _nudge_readers(session: Session) -> None:
    for job_id in session.info.pop("touched", ()):
        nudge(job_id)


@event.listens_for(Session, "after_rollback")
def _forget(session: Session) -> None:
    session.info.pop("touched", None)
