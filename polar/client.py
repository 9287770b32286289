"""The SDK: a small client of the HTTP interface.

    with Client("http://127.0.0.1:8010", key) as client:
        dataset = client.upload(Path("rows.jsonl"))
        job = client.submit({...})
        for frame in client.events(job["id"]):
            print(frame.type, frame.data)

Errors: `ApiError` (the service refused: read `message` and `problems`),
`Unreachable` (no answer; every wait has a timeout).
"""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from polar.sse import Frame, frames, lines_of

Json = dict[str, Any]

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
STREAM_TIMEOUT = httpx.Timeout(45.0, connect=5.0)  # heartbeats come every 15 s
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
_SERVER_ERROR = httpx.codes.INTERNAL_SERVER_ERROR


class ClientError(Exception):
    """What this client raises."""


class Unreachable(ClientError):
    """The service did not answer."""


class ApiError(ClientError):
    """The service refused; the text says what is wrong and the way out."""

    def __init__(self, status: int, body: Json) -> None:
        self.status = status
        self.code = str(body.get("code", ""))
        self.message = str(body.get("message") or body.get("detail") or f"HTTP {status}")
        self.problems: list[Json] = [each for each in body.get("errors") or [] if each]
        lines = [f"  {each.get('pointer')}: {each.get('message')}" for each in self.problems]
        super().__init__("\n".join([self.message, *lines]))


class Client:
    """Talks to one service with one key."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # The service is named by its address: a proxy of the environment has no say in it.
        self._http = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT, trust_env=False)
        self.url = url
        self.key = key

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def request(self, method: str, path: str, **arguments: Any) -> Any:
        """Call the service and return the decoded answer.

        Raises ApiError for every answer that is no success, Unreachable without one.
        """
        try:
            answer = self._http.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise Unreachable(f"no answer from {self.url}: {error}") from error
        _check(answer)
        return answer.json() if answer.content else None

    def submit(self, spec: Json, idempotency_key: str | None = None) -> Json:
        """Submit a JobSpec; sending it again with the same key gives the same job."""
        key = idempotency_key or uuid.uuid4().hex
        job: Json = self.request("POST", "/jobs", json=spec, headers={"Idempotency-Key": key})
        return job

    def plan(self, spec: Json) -> Json:
        """Plan a JobSpec; the same spec on the same data gets the same plan."""
        plan: Json = self.request("POST", "/plans", json=spec)
        return plan

    def preview(self, spec: Json, samples: int) -> Json:
        """Return the first samples of a JobSpec, token by token."""
        body = {"spec": spec, "samples": samples}
        found: Json = self.request("POST", "/plans/preview", json=body)
        return found

    def get(self, job_id: str) -> Json:
        """Return the job: status, progress, attempts, external references."""
        job: Json = self.request("GET", f"/jobs/{job_id}")
        return job

    def jobs(self, **filters: str | int) -> list[Json]:
        """Return the newest jobs; `filters` as in `GET /jobs`."""
        page: Json = self.request("GET", "/jobs", params=filters)
        items: list[Json] = page["items"]
        return items

    def cancel(self, job_id: str) -> Json:
        """Ask for a job's cancellation; it is answered at once."""
        job: Json = self.request("POST", f"/jobs/{job_id}/cancel")
        return job

    def pause(self, job_id: str) -> Json:
        """Ask for a pause: a checkpoint, and the machine given back."""
        job: Json = self.request("POST", f"/jobs/{job_id}/pause")
        return job

    def resume(self, job_id: str) -> Json:
        """Queue a paused job again, or take a pause back."""
        job: Json = self.request("POST", f"/jobs/{job_id}/resume")
        return job

    def targets(self) -> list[Json]:
        """Return the places where jobs can run, with their hosts and devices."""
        page: Json = self.request("GET", "/targets")
        items: list[Json] = page["items"]
        return items

    def drain(self, host: str, *, now: bool = False) -> Json:
        """Give a host no more attempts; with `now` have its attempts go on elsewhere."""
        told: Json = self.request("POST", _drain(host), json={"now": now})
        return told

    def undrain(self, host: str) -> Json:
        """Let a host get attempts again."""
        told: Json = self.request("DELETE", _drain(host))
        return told

    def artifacts(self, job_id: str) -> list[Json]:
        """Return the files that the job published, with size and sha256."""
        page: Json = self.request("GET", f"/jobs/{job_id}/artifacts")
        items: list[Json] = page["items"]
        return items

    def upload(self, file: Path, name: str | None = None) -> Json:
        """Upload a file as a data set and return its record."""
        with file.open("rb") as content:
            dataset: Json = self.request(
                "POST",
                "/datasets",
                files={"file": (file.name, content)},
                data={"name": name or file.stem},
                timeout=httpx.Timeout(600.0, connect=5.0),
            )
        return dataset

    def download(self, job_id: str, path: str, target: Path) -> None:
        """Download one artifact to `target`, which appears only when it is whole."""
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.part")
        try:
            with self._http.stream(
                "GET", f"/jobs/{job_id}/artifacts/{path}", follow_redirects=True
            ) as answer:
                if answer.is_error:
                    answer.read()
                _check(answer)
                with draft.open("wb") as file:
                    for block in answer.iter_bytes():
                        file.write(block)
        except httpx.TransportError as error:
            draft.unlink(missing_ok=True)
            raise Unreachable(f"the download of {path} broke off: {error}") from error
        draft.replace(target)

    def events(self, job_id: str, after: int = 0, patience: float = 120.0) -> Iterator[Frame]:
        """Yield every event after `after`, then what happens, up to the `end` frame.

        A broken connection is taken up again where it broke. Raises Unreachable when the service
        has not answered for `patience` seconds.
        """
        place = _Place(after)
        while not place.ended:
            try:
                yield from place.passing(self._stream(job_id, place))
            except (httpx.TransportError, ApiError) as error:
                if isinstance(error, ApiError) and error.status < _SERVER_ERROR:
                    raise
                if time.monotonic() - place.last_answer > patience:
                    raise Unreachable(f"no answer from {self.url} for {patience:.0f} s") from error
            if not place.ended:
                time.sleep(place.next_pause())

    def _stream(self, job_id: str, place: "_Place") -> Iterator[Frame]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(place.after)}
        path = f"/jobs/{job_id}/events"
        with self._http.stream("GET", path, headers=headers, timeout=STREAM_TIMEOUT) as answer:
            if answer.is_error:
                answer.read()
            _check(answer)
            try:
                yield from frames(lines_of(answer.iter_text()))
            finally:  # heartbeats alone came for hours, maybe: it was there until now
                place.last_answer = time.monotonic()


@dataclass
class _Place:
    """How far a stream has been read, over all its connections."""

    after: int
    ended: bool = False
    pause: float = FIRST_PAUSE
    last_answer: float = field(default_factory=lambda: time.monotonic())

    def passing(self, stream: Iterator[Frame]) -> Iterator[Frame]:
        """Yield the frames of one connection and remember the place."""
        for frame in stream:
            self.pause, self.last_answer = FIRST_PAUSE, time.monotonic()
            if frame.type == "resync":  # too slow a reader: take up again by id
                return
            self.after = self.after if frame.id is None else frame.id
            self.ended = frame.type == "end"
            yield frame
            if self.ended:
                return

    def next_pause(self) -> float:
        """Return the seconds to wait before the next connection; they grow."""
        pause, self.pause = self.pause, min(self.pause * 2, LONGEST_PAUSE)
        return pause


def _drain(host: str) -> str:
    return f"/targets/local/workers/{quote(host, safe='')}/drain"


def _check(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    try:
        body = answer.json()
    except ValueError:
        body = {}
    raise ApiError(answer.status_code, body if isinstance(body, dict) else {})
