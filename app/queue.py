"""The broker's side: nudges to stream readers. Losing one is harmless, readers also poll."""

import atexit
import contextlib
import logging
import os
import queue
import threading
from functools import lru_cache

import redis

from app.settings import get_settings

NUDGE_CHANNEL = "polar:nudge"
_TIMEOUT = 0.5
_log = logging.getLogger(__name__)


@lru_cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(
        get_settings().broker_url.get_secret_value(),
        socket_timeout=_TIMEOUT,
        socket_connect_timeout=_TIMEOUT,
    )


class _Nudger:
    """Publishes from a thread of its own, so that no request or writer waits for the broker."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="nudges", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, job_id: str) -> None:
        """Publish soon; the same job waiting twice is published once."""
        self._waiting.put(job_id)

    def close(self) -> None:
        """Publish what waits, for a moment at most."""
        if self.pid == os.getpid():
            self._waiting.put(None)
            self._thread.join(2 * _TIMEOUT)

    def _run(self) -> None:
        going = True
        while going:
            batch = {self._waiting.get()}
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.add(self._waiting.get_nowait())
            going = None not in batch
            _publish([job_id for job_id in batch if job_id is not None])


def _publish(job_ids: list[str]) -> None:
    client = _client()  # kept: it closes its connections when nobody holds it
    try:
        with client.pipeline(transaction=False) as pipeline:
            for job_id in job_ids:
                pipeline.publish(NUDGE_CHANNEL, job_id)
            pipeline.execute()
    except redis.RedisError as error:
        _log.debug("no nudge for %s: %s", job_ids, error)


_lock = threading.Lock()
_nudger: list[_Nudger] = []


def nudge(job_id: str) -> None:
    """Tell the API processes that the job has something new; the message has no content."""
    if not _nudger or _nudger[0].pid != os.getpid():  # a fork leaves its parent's thread behind
        with _lock:
            if not _nudger or _nudger[0].pid != os.getpid():
                _nudger[:] = [_Nudger()]
    _nudger[0].put(job_id)


def flush() -> None:
    """Publish what waits, for a moment at most: for processes that end without atexit."""
    for each in _nudger:
        each.close()
