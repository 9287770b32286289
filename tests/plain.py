"""The SDK with answers as plain JSON, for tests that compare whole answers."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel

from polar import Client, Frame

Json = dict[str, Any]


def _json(answer: BaseModel) -> Json:
    return answer.model_dump(mode="json", exclude_unset=True)


def _all(answers: Sequence[BaseModel]) -> list[Json]:
    return [_json(each) for each in answers]


class Plain:
    """Talks to one service with one key."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.sdk = Client(url, key)
        self.url, self.key = url, key

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sdk.close()

    def request(self, method: str, path: str, *, json: Any = None, params: Any = None) -> Any:
        return self.sdk.request(method, path, json=json, query=params)

    def submit(self, spec: Mapping[str, Any], idempotency_key: str | None = None) -> Json:
        return _json(self.sdk.jobs.create(spec, idempotency_key=idempotency_key))

    def get(self, job_id: str) -> Json:
        return _json(self.sdk.jobs.get(job_id))

    def jobs(self, limit: int) -> list[Json]:
        return _all(self.sdk.jobs.page(limit=limit).items)

    def cancel(self, job_id: str) -> Json:
        return _json(self.sdk.jobs.cancel(job_id))

    def pause(self, job_id: str) -> Json:
        return _json(self.sdk.jobs.pause(job_id))

    def resume(self, job_id: str) -> Json:
        return _json(self.sdk.jobs.resume(job_id))

    def events(self, job_id: str) -> Iterator[Frame]:
        return self.sdk.jobs.events(job_id)

    def artifacts(self, job_id: str) -> list[Json]:
        return _all(self.sdk.jobs.artifacts(job_id))

    def download(self, job_id: str, path: str, target: Path) -> None:
        self.sdk.jobs.download(job_id, path, target)

    def upload(self, file: Path, name: str | None = None) -> Json:
        return _json(self.sdk.datasets.upload(file, name))

    def plan(self, spec: Json) -> Json:
        return _json(self.sdk.plans.create(spec))

    def drain(self, host: str) -> Json:
        return _json(self.sdk.targets.drain(host))

    def undrain(self, host: str) -> Json:
        return _json(self.sdk.targets.undrain(host))
