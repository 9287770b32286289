"""The broker's side: nudges to stream readers. Losing one is harmless, readers also poll."""

import logging
from functools import lru_cache

import redis

from app.settings import get_settings

NUDGE_CHANNEL = "polar:nudge"
_log = logging.getLogger(__name__)


@lru_cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(
        get_settings().broker_url.get_secret_value(), socket_timeout=0.5, socket_connect_timeout=0.5
    )


def nudge(job_id: str) -> None:
    """Tell the API processes that the job has something new; the message has no content."""
    try:
        _client().publish(NUDGE_CHANNEL, job_id)
    except redis.RedisError as error:
        _log.debug("no nudge for %s: %s", job_id, error)
