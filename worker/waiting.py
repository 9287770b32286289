"""Slow work in a thread, left behind as soon as the lease or the job is gone."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from worker.lease import LeaseKeeper

T = TypeVar("T")


class Stopped(Exception):
    """The work must not go on: cancelled, lost, or this process is to end."""


class TookTooLong(Exception):
    """The work was not done in its time."""


def unless_stopped(keeper: LeaseKeeper, work: Callable[[], T], within: float) -> T:
    """Return the result of `work()`.

    Raises Stopped when the keeper says so before it is there, and TookTooLong after `within`
    seconds. The thread goes on then until this process ends, and its result is dropped.
    """
    deadline = time.monotonic() + within
    pool = ThreadPoolExecutor(1, thread_name_prefix="slow-work")
    future = pool.submit(work)
    future.add_done_callback(lambda _: keeper.wake())
    pool.shutdown(wait=False)
    while not future.done():
        if keeper.stopping:
            raise Stopped
        left = deadline - time.monotonic()
        if left <= 0:
            raise TookTooLong(f"not done within {within:g} s")
        keeper.pause(min(left, 1.0))
    return future.result()
