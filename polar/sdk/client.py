"""The two clients: the same resources, called plainly or with await.

from polar import Client

with Client("http://127.0.0.1:8010", key) as client:
    dataset = client.datasets.upload("rows.jsonl")
    job = client.jobs.create({...})
    for event in job.events():
        print(event.type, event.data)
"""

import os
from types import TracebackType
from typing import Any, Generic, Self

import httpx

from polar.sdk.calls import Call, decoded, shown
from polar.sdk.drivers import AsyncDriver, Driver
from polar.sdk.errors import NoService
from polar.sdk.jobs import Jobs
from polar.sdk.operations import D, Resource, operation
from polar.sdk.sweeps import Presets, Sweeps
from polar.sdk.things import (
    Datasets,
    Events,
    Keys,
    Models,
    Plans,
    Secrets,
    Service,
    Targets,
    Uploads,
)
from polar.sdk.webhooks import Webhooks


def _address(url: str | None, key: str | None) -> tuple[str, str | None]:
    url = (url or os.environ.get("POLAR_URL") or "").strip()
    if not url:
        raise NoService("no service is named: give Client(url, key), or set POLAR_URL")
    key = (key or os.environ.get("POLAR_API_KEY") or "").strip() or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise NoService("the API key holds characters that no key has: look at POLAR_API_KEY")
    _check_address(url)
    return url.rstrip("/"), key


def _check_address(url: str) -> None:
    try:
        parts = httpx.URL(url)
        parts.host.encode("idna")  # as the name is looked up
    except (httpx.InvalidURL, UnicodeError) as error:
        raise NoService(f"{shown(url)!r} is no address of a service: {error}") from None
    # A greater port would be cut to its last 16 bits, which is another service's.
    port = 0 < (80 if parts.port is None else parts.port) < 2**16
    if parts.scheme not in ("http", "https") or not parts.host or not port:
        told = "is no address of a service: give one such as http://127.0.0.1:8010"
        raise NoService(f"{shown(url)!r} {told}")


class _Resources(Resource[D], Generic[D]):
    """What both clients have; the key is in no text of theirs."""

    def __init__(self, driver: D, url: str, key: str | None) -> None:
        super().__init__(driver)
        self.url, self.key = url, key
        self.jobs = Jobs(driver)
        self.datasets = Datasets(driver)
        self.uploads = Uploads(driver)
        self.models = Models(driver)
        self.plans = Plans(driver)
        self.keys = Keys(driver)
        self.secrets = Secrets(driver)
        self.targets = Targets(driver)
        self.webhooks = Webhooks(driver)
        self.sweeps = Sweeps(driver)
        self.presets = Presets(driver)
        self.events = Events(driver)
        self.service = Service(driver)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self.url)!r})"

    @operation
    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        query: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Call[Any]:
        """Call any path of the API and return the decoded JSON, or the text that is none."""
        return Call(
            method=method.upper(),
            path=path,
            json=json,
            query=query or {},
            headers=headers or {},
            read=_plain,
        )


def _plain(answer: httpx.Response) -> Any:
    kind = answer.headers.get("Content-Type", "application/json")
    return decoded(answer) if "json" in kind else answer.text


class Client(_Resources[Driver]):
    """Talks to one service with one key, from POLAR_URL and POLAR_API_KEY if they are not given.

    Raises NoService without an address.
    """

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        url, key = _address(url, key)
        super().__init__(Driver(url, key), url, key)

    def close(self) -> None:
        """Close the connections."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient(_Resources[AsyncDriver]):
    """Client for programs that await; on asyncio or trio."""

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        url, key = _address(url, key)
        super().__init__(AsyncDriver(url, key), url, key)

    async def close(self) -> None:
        """Close the connections."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
