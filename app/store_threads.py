"""Threads of their own for what waits for the object store.

A store that hangs holds each of its readers for minutes. They share these threads, and none of
those on which everybody else's requests and keys are looked up in the database.
"""

import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import ParamSpec, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from app.s3 import StoreUnavailable
from app.settings import get_settings

P = ParamSpec("P")
T = TypeVar("T")
PATIENCE = 30.0  # seconds for a free thread
_limiter: RunVar[CapacityLimiter] = RunVar("store_threads")


def _threads() -> CapacityLimiter:
    """The event loop's own: as many as other requests have."""
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(CapacityLimiter(get_settings().threads))
        return _limiter.get()


async def in_store_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run what waits for the object store; raises StoreUnavailable when no thread gets free."""
    threads, borrower = _threads(), object()
    try:
        with anyio.fail_after(PATIENCE):
            await threads.acquire_on_behalf_of(borrower)
    except TimeoutError as error:
        message = (
            f"the object store keeps everybody waiting, {PATIENCE:g} s by now; try again later"
        )
        raise StoreUnavailable(message) from error
    try:
        return await at_once(function, *arguments)
    finally:
        threads.release_on_behalf_of(borrower)


async def at_once(function: Callable[..., T], *arguments: object) -> T:
    """Run what gives something back and waits for nobody, whoever has the threads."""
    return await to_thread.run_sync(function, *arguments, limiter=CapacityLimiter(math.inf))


def waits_for_store(route: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Have a route's function run on the store's threads."""

    @functools.wraps(route)
    async def threaded(*args: P.args, **kwargs: P.kwargs) -> T:
        return await in_store_thread(functools.partial(route, *args, **kwargs))

    return threaded


async def each_in_store_thread(blocks: Iterable[T]) -> AsyncIterator[T]:
    """Yield what an iterable yields that waits for the store each time."""
    iterator, end = iter(blocks), object()
    while (block := await in_store_thread(next, iterator, end)) is not end:
        yield block
