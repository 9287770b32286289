"""Nudges from the broker: ids of jobs that have something new. Losing one is harmless."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import redis.asyncio
from redis.exceptions import RedisError

from app.queue import NUDGE_CHANNEL
from app.telemetry import NUDGES_CONNECTED

_LONGEST_BACK_OFF = 5.0
_log = logging.getLogger(__name__)


async def listen(url: str, on_nudge: Callable[[str], None]) -> None:
    """Call `on_nudge` with each job's id, for ever; connects again whenever the broker is back."""
    back_off = 0.1
    while True:
        try:
            async for job_id in _nudges(url):
                back_off = 0.1
                on_nudge(job_id)
        except (RedisError, OSError, RuntimeError) as error:  # the last one is uvloop's
            _log.warning("no nudges from the broker, polling: %s", error)
        finally:
            NUDGES_CONNECTED.set(0)
        await asyncio.sleep(back_off)
        back_off = min(back_off * 2, _LONGEST_BACK_OFF)


async def _nudges(url: str) -> AsyncIterator[str]:
    client = redis.asyncio.Redis.from_url(
        url, socket_connect_timeout=5, socket_keepalive=True, health_check_interval=30
    )
    async with client, client.pubsub(ignore_subscribe_messages=True) as channel:
        await channel.subscribe(NUDGE_CHANNEL)
        NUDGES_CONNECTED.set(1)
        async for message in channel.listen():
            yield bytes(message["data"]).decode("ascii", "replace")
