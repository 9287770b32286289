"""Jobs: submit, look, steer, follow; a job that is returned has these as methods of its own."""

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
from pydantic import BaseModel, PrivateAttr

from polar.sdk import answers
from polar.sdk.calls import Call, Course, Json, Pause, nothing, part, path_of, text_of
from polar.sdk.drivers import AsyncDriver, Driver
from polar.sdk.errors import Waited
from polar.sdk.files import download, download_archive
from polar.sdk.listening import PATIENCE, Listener
from polar.sdk.operations import D, PathLike, Resource, job_operation, operation, pages, stream
from polar.sdk.reading import as_, items_of
from polar.sse import Frame

Spec = Mapping[str, Any] | BaseModel
ENDED = ("succeeded", "failed", "cancelled")
DAY = 86400.0
_FIRST_LOOK, _LONGEST_LOOK = 0.2, 5.0  # seconds between two looks of `wait`


def body_of(spec: Spec) -> Json:
    """Return a spec as JSON: what was not set stays out, so that the service decides it."""
    if isinstance(spec, BaseModel):
        return spec.model_dump(mode="json", exclude_unset=True)
    return dict(spec)


def _job(answer: httpx.Response) -> Json:
    """Return a job's JSON; raises ValueError for what is no job."""
    answers.JobOut.model_validate_json(answer.content)
    body: Json = answer.json()
    return body


def _submit(path: str, body: Json, key: str | None) -> Call[Json]:
    headers = {"Idempotency-Key": key or secrets.token_hex(16)}
    return Call(method="POST", path=path, json=body, headers=headers, again=True, read=_job)


def _intent(job_id: str, what: str) -> Call[Json]:
    return Call(method="POST", path=f"{_at(job_id)}/{what}", again=True, read=_job)


def _at(job_id: str) -> str:
    return f"/jobs/{part(job_id)}"


class LogLines(NamedTuple):
    """A part of a log."""

    text: str
    next_after: int


def _log_lines(answer: httpx.Response) -> LogLines:
    return LogLines(answer.text, int(answer.headers["X-Next-After"]))


def _commas(names: str | Sequence[str] | None) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(names)


class Jobs(Resource[D]):
    """`/jobs`. A job is named by its id."""

    def bound(self, body: Json) -> "Job | AsyncJob":
        """Return a job of this client."""
        kind: type[Job | AsyncJob] = Job if isinstance(self._driver, Driver) else AsyncJob
        return kind.model_validate(body).attached(self)

    @job_operation
    def create(self, spec: Spec, *, idempotency_key: str | None = None) -> Call[Json]:
        """Submit a JobSpec, as a dict or a model.

        Each call has an Idempotency-Key, the same in all its tries, so that a lost answer makes no
        second job; with a key of your own that holds over several calls. Raises Invalid.
        """
        return _submit("/jobs", body_of(spec), idempotency_key)

    @job_operation
    def get(self, job_id: str) -> Call[Json]:
        """Return the job: status, progress, attempts, external references."""
        return Call(method="GET", path=_at(job_id), read=_job)

    @operation
    def page(  # noqa: PLR0913 - the filters of the API
        self,
        *,
        status: Sequence[str] | str | None = None,
        task: str | None = None,
        target: str | None = None,
        backend: str | None = None,
        labels: Mapping[str, str] | None = None,
        q: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
        fields: str | Sequence[str] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Call[answers.JobPage]:
        """Return a page of jobs, newest first; times are RFC 3339 with an offset."""
        query: Json = {f"label.{name}": value for name, value in (labels or {}).items()}
        query |= {"status": status, "task": task, "target": target, "backend": backend, "q": q}
        query |= {"created_after": created_after, "created_before": created_before}
        query |= {"fields": _commas(fields), "limit": limit, "cursor": cursor}
        return Call(method="GET", path="/jobs", query=query, read=as_(answers.JobPage))

    list = pages(page.describe)

    @job_operation
    def update(
        self,
        job_id: str,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        priority: int | None = None,
    ) -> Call[Json]:
        """Change name, labels (all of them) or priority; what is None stays."""
        given = {"name": name, "labels": labels, "priority": priority}
        body = {field: value for field, value in given.items() if value is not None}
        return Call(method="PATCH", path=_at(job_id), json=body, again=True, read=_job)

    @operation
    def delete(self, job_id: str, *, artifacts: bool = False) -> Call[None]:
        """Delete a job that has ended, with what it published if `artifacts`."""
        query = {"artifacts": "true"} if artifacts else {}
        return Call(method="DELETE", path=_at(job_id), query=query, read=nothing)

    @job_operation
    def cancel(self, job_id: str) -> Call[Json]:
        """Ask for a job's cancellation; it is answered at once, and asking again is fine."""
        return _intent(job_id, "cancel")

    @job_operation
    def pause(self, job_id: str) -> Call[Json]:
        """Ask for a pause: a checkpoint, and the machine given back."""
        return _intent(job_id, "pause")

    @job_operation
    def resume(self, job_id: str) -> Call[Json]:
        """Queue a paused job again, or take a pause back."""
        return _intent(job_id, "resume")

    @job_operation
    def retry_push(self, job_id: str) -> Call[Json]:
        """Have what did not reach the hub pushed again."""
        return _intent(job_id, "hub/retry")

    @job_operation
    def retry(
        self, job_id: str, *, from_scratch: bool = False, idempotency_key: str | None = None
    ) -> Call[Json]:
        """Try a job that ended again, as a new one that starts from its newest checkpoint."""
        return _submit(f"{_at(job_id)}/retry", {"from_scratch": from_scratch}, idempotency_key)

    @job_operation
    def clone(
        self,
        job_id: str,
        overrides: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Call[Json]:
        """Submit the same spec with `overrides` (a JSON merge patch: None removes)."""
        body = {"overrides": dict(overrides or {})}
        return _submit(f"{_at(job_id)}/clone", body, idempotency_key)

    @job_operation
    def wait(self, job_id: str, *, timeout: float = DAY) -> Course[Json]:
        """Return the job when it has ended, however; raises Waited after `timeout` seconds."""
        began, pause = time.monotonic(), _FIRST_LOOK
        while True:
            job: Json = yield from Call(method="GET", path=_at(job_id), read=_job)
            if job["status"] in ENDED:
                return job
            left = began + timeout - time.monotonic()
            if left <= 0:
                raise Waited(f"{job_id} is {job['status']} after {timeout:g} s")
            yield Pause(min(pause, left))
            pause = min(2 * pause, _LONGEST_LOOK)

    @stream
    def events(
        self,
        job_id: str,
        *,
        after: int = 0,
        types: str | Sequence[str] | None = None,
        patience: float = PATIENCE,
    ) -> Listener:
        """Yield every event after `after`, then what happens, up to the `end` frame.

        A broken connection is taken up again where it broke: nothing is lost or comes twice.
        Raises Unreachable when the service has not answered for `patience` seconds.
        """
        return Listener(
            f"{_at(job_id)}/events", after=str(after), types=_commas(types), patience=patience
        )

    @operation
    def event_page(
        self,
        job_id: str,
        *,
        after: int = 0,
        types: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Call[answers.JobEventPage]:
        """Return the events after `after`, as many as a page holds."""
        query = {"after": after, "types": _commas(types), "limit": limit}
        path = f"{_at(job_id)}/events"
        return Call(method="GET", path=path, query=query, read=as_(answers.JobEventPage))

    @operation
    def logs(
        self,
        job_id: str,
        *,
        after: int | None = None,
        tail: int | None = None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> Call[str]:
        """Return what the job has logged, as lines of text."""
        query = {"after": after, "tail": tail, "attempt": attempt, "rank": rank}
        return Call(method="GET", path=f"{_at(job_id)}/logs", query=query, read=text_of)

    @operation
    def log_lines(
        self,
        job_id: str,
        *,
        after: int | None = None,
        tail: int | None = None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> Call[LogLines]:
        """Return the same with the number after which to ask for what follows."""
        query = {"after": after, "tail": tail, "attempt": attempt, "rank": rank}
        return Call(method="GET", path=f"{_at(job_id)}/logs", query=query, read=_log_lines)

    @operation
    def metrics(
        self,
        job_id: str,
        *,
        names: str | Sequence[str] | None = None,
        max_points: int | None = None,
    ) -> Call[answers.Series]:
        """Return series by name: points of step, value and time."""
        query = {"names": _commas(names), "max_points": max_points}
        path = f"{_at(job_id)}/metrics"
        return Call(method="GET", path=path, query=query, read=as_(answers.Series))

    @operation
    def checkpoints(self, job_id: str) -> Call[Sequence[answers.CheckpointOut]]:
        """Return the job's whole checkpoints, the one to resume from first."""
        path = f"{_at(job_id)}/checkpoints"
        return Call(
            method="GET", path=path, read=items_of(answers.CheckpointList, lambda page: page.items)
        )

    @operation
    def artifacts(self, job_id: str) -> Call[Sequence[answers.ArtifactOut]]:
        """Return the files that the job keeps, with size and sha256."""
        path = f"{_at(job_id)}/artifacts"
        return Call(
            method="GET", path=path, read=items_of(answers.ArtifactList, lambda page: page.items)
        )

    @operation
    def download(self, job_id: str, path: str, target: PathLike) -> Course[Path]:
        """Download one artifact to `target`, which appears only when its sha256 is right."""
        return download(f"{_at(job_id)}/artifacts/{path_of(path)}", Path(target))

    @operation
    def download_archive(
        self, job_id: str, target: PathLike, *, kind: str | None = None
    ) -> Course[Path]:
        """Download the job's files, or those of one kind, as one tar file."""
        return download_archive(f"{_at(job_id)}/artifacts.tar", Path(target), kind)


class Job(answers.JobOut):
    """A job as it was when it was asked for; `refresh` returns it as it is now."""

    _jobs: Jobs[Driver] = PrivateAttr()

    def attached(self, jobs: Any) -> Self:
        """Have the methods use this client."""
        self._jobs = jobs
        return self

    def refresh(self) -> "Job":
        """Return the job as it is now."""
        return self._jobs.get(self.id)

    def wait(self, *, timeout: float = DAY) -> "Job":
        """Return the job when it has ended; raises Waited."""
        return self._jobs.wait(self.id, timeout=timeout)

    def events(self, *, after: int = 0, patience: float = PATIENCE) -> Iterator[Frame]:
        """Yield its events from the start, then live, up to the `end` frame."""
        return self._jobs.events(self.id, after=after, patience=patience)

    def cancel(self) -> "Job":
        """Ask for its cancellation."""
        return self._jobs.cancel(self.id)

    def pause(self) -> "Job":
        """Ask for a pause."""
        return self._jobs.pause(self.id)

    def resume(self) -> "Job":
        """Queue it again, or take a pause back."""
        return self._jobs.resume(self.id)

    def retry(self, *, from_scratch: bool = False) -> "Job":
        """Try it again, as a new job."""
        return self._jobs.retry(self.id, from_scratch=from_scratch)

    def clone(self, overrides: Mapping[str, Any] | None = None) -> "Job":
        """Submit its spec again with changes."""
        return self._jobs.clone(self.id, overrides)

    def logs(self, *, tail: int | None = None) -> str:
        """Return what it has logged."""
        return self._jobs.logs(self.id, tail=tail)

    def metrics(self, names: Sequence[str] | None = None) -> answers.Series:
        """Return its series."""
        return self._jobs.metrics(self.id, names=names)

    def artifacts(self) -> Sequence[answers.ArtifactOut]:
        """Return its files."""
        return self._jobs.artifacts(self.id)

    def download(self, path: str, target: PathLike) -> Path:
        """Download one of its files."""
        return self._jobs.download(self.id, path, target)


class AsyncJob(answers.JobOut):
    """A job as it was when it was asked for; `refresh` returns it as it is now."""

    _jobs: Jobs[AsyncDriver] = PrivateAttr()

    def attached(self, jobs: Any) -> Self:
        """Have the methods use this client."""
        self._jobs = jobs
        return self

    async def refresh(self) -> "AsyncJob":
        """Return the job as it is now."""
        return await self._jobs.get(self.id)

    async def wait(self, *, timeout: float = DAY) -> "AsyncJob":  # noqa: ASYNC109 - of the job
        """Return the job when it has ended; raises Waited."""
        return await self._jobs.wait(self.id, timeout=timeout)

    def events(self, *, after: int = 0, patience: float = PATIENCE) -> AsyncIterator[Frame]:
        """Yield its events from the start, then live, up to the `end` frame."""
        return self._jobs.events(self.id, after=after, patience=patience)

    async def cancel(self) -> "AsyncJob":
        """Ask for its cancellation."""
        return await self._jobs.cancel(self.id)

    async def pause(self) -> "AsyncJob":
        """Ask for a pause."""
        return await self._jobs.pause(self.id)

    async def resume(self) -> "AsyncJob":
        """Queue it again, or take a pause back."""
        return await self._jobs.resume(self.id)

    async def retry(self, *, from_scratch: bool = False) -> "AsyncJob":
        """Try it again, as a new job."""
        return await self._jobs.retry(self.id, from_scratch=from_scratch)

    async def clone(self, overrides: Mapping[str, Any] | None = None) -> "AsyncJob":
        """Submit its spec again with changes."""
        return await self._jobs.clone(self.id, overrides)

    async def logs(self, *, tail: int | None = None) -> str:
        """Return what it has logged."""
        return await self._jobs.logs(self.id, tail=tail)

    async def metrics(self, names: Sequence[str] | None = None) -> answers.Series:
        """Return its series."""
        return await self._jobs.metrics(self.id, names=names)

    async def artifacts(self) -> Sequence[answers.ArtifactOut]:
        """Return its files."""
        return await self._jobs.artifacts(self.id)

    async def download(self, path: str, target: PathLike) -> Path:
        """Download one of its files."""
        return await self._jobs.download(self.id, path, target)
