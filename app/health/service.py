"""What the service needs, and whether it answers; each look takes two seconds at most."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import redis
import sqlalchemy.exc
from sqlalchemy import text

from app.db import transaction
from app.errors import ServiceError
from app.health.schemas import Readiness
from app.schema import WrongSchema, check, read_schema
from app.settings import get_settings
from app.storage import get_store

_TIMEOUT = 2.0
KEPT = 1.0  # seconds that an answer serves everybody
_FAILURES = (
    sqlalchemy.exc.SQLAlchemyError,
    redis.RedisError,
    httpx.HTTPError,
    ServiceError,
    OSError,
)
_pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="readiness")
_running: dict[str, Future[bool]] = {}
_log = logging.getLogger(__name__)


def _database() -> None:
    with transaction() as session:
        session.execute(text("SELECT 1 FROM projects LIMIT 1"))
        try:
            check(read_schema(session))
        except WrongSchema as wrong:
            raise OSError(wrong) from wrong


def _workers() -> None:
    query = text(
        """SELECT EXISTS (SELECT FROM workers WHERE kind = 'host'
        AND seen_at > now() - CAST(:seconds AS float) * interval '1 second')"""
    )
    with transaction() as session:
        if not session.execute(query, {"seconds": get_settings().worker_timeout}).scalar():
            raise OSError("no host is online")


def _broker() -> None:
    url = get_settings().broker_url.get_secret_value()
    options = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT}
    with redis.Redis.from_url(url, **options) as client:
        client.ping()


def _store() -> None:
    get_store().head("readiness")


def _mlflow() -> None:
    if base := get_settings().mlflow_url:
        httpx.get(f"{base.rstrip('/')}/health", timeout=_TIMEOUT).raise_for_status()


_NEEDED: dict[str, Callable[[], None]] = {"database": _database, "broker": _broker, "store": _store}
_WANTED: dict[str, Callable[[], None]] = {"mlflow": _mlflow, "workers": _workers}


class Looks:
    """One look at a time, whose answer serves whoever asks within a second of it.

    It costs the threads of other requests nothing. Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._look: asyncio.Task[Readiness] | None = None
        self._until = 0.0

    async def readiness(self) -> Readiness:
        """Return what a look that is not over, or was over lately, has found."""
        if self._look is None or (self._look.done() and time.monotonic() > self._until):
            self._look = asyncio.create_task(self._renew())
        return await asyncio.shield(self._look)

    async def _renew(self) -> Readiness:
        try:
            return await _look_at_all()
        finally:
            self._until = time.monotonic() + KEPT


async def _look_at_all() -> Readiness:
    """Look at every part at once; a look that hangs counts as no answer and is not repeated."""
    parts = _NEEDED | _WANTED
    for name, look in parts.items():
        if name not in _running or _running[name].done():
            _running[name] = _pool.submit(_answers, name, look)
    looks = {name: asyncio.wrap_future(look) for name, look in _running.items()}
    await asyncio.wait(looks.values(), timeout=_TIMEOUT + 0.5)
    absent = {name for name, look in looks.items() if not look.done() or not look.result()}
    missing = [name for name in _NEEDED if name in absent]
    return Readiness(
        ready=not missing, missing=missing, degraded=[name for name in _WANTED if name in absent]
    )


def _answers(name: str, look: Callable[[], None]) -> bool:
    try:
        look()
    except _FAILURES as error:
        _log.info("not ready: %s: %s", name, getattr(error, "orig", None) or error)
        return False
    return True
