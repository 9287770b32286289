"""The two drivers do the steps of calls, one plainly, one with await; neither knows any call."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar

import anyio
import httpx

from polar.sdk.calls import Pause, Receive, Send, Step, Steps, Work, shown, unreachable
from polar.sdk.errors import ClientError
from polar.sdk.listening import Listener
from polar.sdk.operations import Page
from polar.sse import Frame

T = TypeVar("T")


def _settings(url: str, key: str | None) -> dict[str, Any]:
    """Return what both kinds of httpx client are made with."""
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        # The service is named by its address: a proxy of the environment has no say in it.
        "trust_env": False,
        # Certificates are loaded where there are any to check: redirects are not followed.
        "verify": not url.startswith("http://"),
        # A session's cookie is for browsers; the key says who this is.
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),
    }


class Driver:
    """Sends calls and waits for them."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = shown(url)
        self._http = httpx.Client(**_settings(url, key))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def run(self, steps: Steps[T]) -> T:
        """Do the steps; returns and raises what they do."""
        course, result, error = iter(steps), None, None
        while True:
            try:
                step = course.send(result) if error is None else course.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            result = error = None
            try:
                result = self._do(step)
            except ClientError as failed:
                error = failed

    def _do(self, step: Step) -> Any:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        if isinstance(step, Work):
            return step.compute()
        try:
            if isinstance(step, Send):
                return self._http.request(**step.request.arguments())
            return self._receive(step)
        except httpx.RequestError as error:
            raise unreachable(self._url, error) from error

    def _receive(self, step: Receive) -> httpx.Response:
        with self._http.stream(**step.request.arguments()) as answer:
            if not answer.is_success:
                answer.read()
                return answer
            step.sink.begin(answer)
            for block in answer.iter_bytes():
                step.sink.write(block)
        return answer

    def pages(self, describe: Callable[[str | None], Steps[Page[T]]]) -> Iterator[T]:
        """Yield the items of all pages."""
        cursor: str | None = None
        while True:
            page = self.run(describe(cursor))
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def listen(self, listener: Listener) -> Iterator[Frame]:
        """Yield the frames of a stream, over as many connections as it takes."""
        while not listener.ended:
            error: ClientError | None = None
            try:
                yield from self._connection(listener)
            except httpx.RequestError as failed:
                error = unreachable(self._url, failed)
            except ClientError as failed:
                error = failed
            if not listener.ended:
                time.sleep(listener.pause_after(error))

    def _connection(self, listener: Listener) -> Iterator[Frame]:
        with self._http.stream(**listener.request().arguments()) as answer:
            if not answer.is_success:
                answer.read()
            listener.opened(answer)
            for text in answer.iter_text():
                yield from listener.take(text)
                if listener.ended:
                    return


class AsyncDriver:
    """Sends calls and awaits them; on asyncio or trio."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = shown(url)
        self._http = httpx.AsyncClient(**_settings(url, key))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def run(self, steps: Steps[T]) -> T:
        """Do the steps; returns and raises what they do."""
        course, result, error = iter(steps), None, None
        while True:
            try:
                step = course.send(result) if error is None else course.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            result = error = None
            try:
                result = await self._do(step)
            except ClientError as failed:
                error = failed

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Pause):
            await anyio.sleep(step.seconds)
            return None
        if isinstance(step, Work):
            return await anyio.to_thread.run_sync(step.compute)
        try:
            if isinstance(step, Send):
                return await self._http.request(**step.request.arguments())
            return await self._receive(step)
        except httpx.RequestError as error:
            raise unreachable(self._url, error) from error

    async def _receive(self, step: Receive) -> httpx.Response:
        async with self._http.stream(**step.request.arguments()) as answer:
            if not answer.is_success:
                await answer.aread()
                return answer
            step.sink.begin(answer)
            async for block in answer.aiter_bytes():
                step.sink.write(block)
        return answer

    async def pages(self, describe: Callable[[str | None], Steps[Page[T]]]) -> AsyncIterator[T]:
        """Yield the items of all pages."""
        cursor: str | None = None
        while True:
            page = await self.run(describe(cursor))
            for item in page.items:
                yield item
            if (cursor := page.next_cursor) is None:
                return

    async def listen(self, listener: Listener) -> AsyncIterator[Frame]:
        """Yield the frames of a stream, over as many connections as it takes."""
        while not listener.ended:
            error: ClientError | None = None
            try:
                async for frame in self._connection(listener):
                    yield frame
            except httpx.RequestError as failed:
                error = unreachable(self._url, failed)
            except ClientError as failed:
                error = failed
            if not listener.ended:
                await anyio.sleep(listener.pause_after(error))

    async def _connection(self, listener: Listener) -> AsyncIterator[Frame]:
        async with self._http.stream(**listener.request().arguments()) as answer:
            if not answer.is_success:
                await answer.aread()
            listener.opened(answer)
            async for text in answer.aiter_text():
                for frame in listener.take(text):
                    yield frame
                if listener.ended:
                    return
