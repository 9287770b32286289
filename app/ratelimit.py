"""How many requests a key may send: one bucket of tokens for each, shared by all API processes.

The bucket lives in Valkey, filled by Valkey's own clock. A process takes a handful of tokens at a
time and spends them without asking again, so that a request seldom costs a round trip. While
Valkey is away each process keeps buckets of its own: the limit then holds for each of them.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field

import redis.asyncio
from redis.exceptions import RedisError

from app.settings import Settings

_log = logging.getLogger(__name__)
_PATIENCE = 0.25  # for Valkey's answer
_AWAY_FOR = 5.0  # before it is asked again
_MOST_KEYS = 4096
_SCRIPT = """
local rate, burst, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local bucket = redis.call('HMGET', KEYS[1], 'time', 'tokens')
local past = math.max(0, now - (tonumber(bucket[1]) or now))
local tokens = math.min(burst, (tonumber(bucket[2]) or burst) + past * rate)
local given = math.min(wanted, math.floor(tokens))
redis.call('HSET', KEYS[1], 'time', string.format('%.6f', now), 'tokens', tokens - given)
redis.call('EXPIRE', KEYS[1], math.ceil(burst / rate) + 1)
return {given, tostring(math.max(0, 1 - tokens) / rate)}
"""


@dataclass
class _Purse:
    """What this process holds of a key's tokens, until `expires`."""

    tokens: float = 0.0
    expires: float = 0.0
    closed_until: float = 0.0
    filled: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RateLimit:
    """Counts the requests of keys; used from one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._rate = settings.rate_limit
        self._burst = max(settings.rate_burst, 1.0)
        self._handful = max(1.0, min(self._burst / 20, self._rate / 10))
        self._purses: dict[str, _Purse] = {}
        self._away_until = 0.0
        self._valkey = redis.asyncio.Redis.from_url(
            settings.broker_url.get_secret_value(),
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            health_check_interval=30,
        )
        self._script = self._valkey.register_script(_SCRIPT)

    async def close(self) -> None:
        """Hang up."""
        await self._valkey.aclose()

    async def wait_of(self, key_id: str) -> float:
        """Spend one token of the key; returns 0, or in how many seconds there will be one."""
        purse = self._purses.get(key_id) or self._new_purse(key_id)
        now = time.monotonic()
        if purse.tokens >= 1 and now < purse.expires:
            purse.tokens -= 1
            return 0.0
        if now < purse.closed_until:
            return purse.closed_until - now
        async with purse.lock:  # one request asks for all that wait
            if purse.tokens < 1 or time.monotonic() >= purse.expires:
                await self._fill(key_id, purse)
            if purse.tokens >= 1:
                purse.tokens -= 1
                return 0.0
            return max(purse.closed_until - time.monotonic(), 0.001)

    def _new_purse(self, key_id: str) -> _Purse:
        if len(self._purses) >= _MOST_KEYS:
            self._purses.clear()
        return self._purses.setdefault(key_id, _Purse())

    async def _fill(self, key_id: str, purse: _Purse) -> None:
        now = time.monotonic()
        if now < self._away_until:
            self._fill_alone(purse)
            return
        try:
            arguments = [self._rate, self._burst, self._handful]
            given, wait = await self._script(keys=[f"polar:rate:{key_id}"], args=arguments)
        except (RedisError, OSError, TimeoutError, RuntimeError) as error:
            # RuntimeError: uvloop's word for a connection that was reset this moment.
            _log.warning("rate limits hold for each process alone for now: %s", error)
            self._away_until = now + _AWAY_FOR
            self._fill_alone(purse)
            return
        purse.tokens, purse.expires, purse.filled = float(given), now + 1.0, now
        purse.closed_until = now + float(wait)

    def _fill_alone(self, purse: _Purse) -> None:
        """Go on without Valkey, with a bucket of this process."""
        now = time.monotonic()
        earned = (now - purse.filled) * self._rate
        purse.tokens = min(self._burst, purse.tokens + earned)
        purse.filled, purse.expires = now, self._away_until
        purse.closed_until = now + max(0.0, 1 - purse.tokens) / self._rate
