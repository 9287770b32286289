"""The SDK against a real server on a socket: resuming streams, retries, errors, whole downloads."""

import hashlib
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import chdir, contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import anyio
import httpx
import pytest

import polar
from polar import (
    ApiError,
    AsyncClient,
    Client,
    ClientError,
    Corrupt,
    Invalid,
    NoService,
    NotFound,
    RateLimited,
    ServerError,
    Unreachable,
    Unsendable,
    Waited,
)
from polar.manifest import Mismatch, verify
from polar.sdk import answers
from polar.sdk.calls import ATTEMPTS
from polar.sdk.files import ARCHIVE, Draft, download_archive, inside
from polar.sdk.generate import HIDDEN, formatted, generated
from polar.sse import Decoder, Frame
from polar.stack.ports import free_ports
from tests.services import ROOT

T = TypeVar("T")
JOB = {
    "id": "job_1",
    "name": "a",
    "labels": {},
    "priority": 0,
    "status": "queued",
    "task_type": "sft",
    "backend": "hf",
    "target": "local",
    "spec": {},
    "resolved": {},
    "warnings": [],
    "max_attempts": 3,
    "attempts": [],
    "links": {},
    "external_refs": {"storage": "s3://b/p", "mlflow": None, "model": None, "hub": None},
    "created_at": "2026-11-30T10:00:00Z",
    "updated_at": "2026-11-30T10:00:00Z",
    "of_a_newer_service": 7,
    **dict.fromkeys(["phase", "reason", "message", "turn", "waiting_for", "queue_position"]),
    **dict.fromkeys(["retry_of", "clone_of", "start_from", "progress", "latest_metrics"]),
    **dict.fromkeys(["cancel_requested_at", "pause_requested_at", "started_at", "finished_at"]),
}
FILE = bytes(range(256)) * 40
SHA = hashlib.sha256(FILE).hexdigest()


class Service(BaseHTTPRequestHandler):
    """Breaks each stream off after two of five events, and each answer that it is told to."""

    asked: ClassVar[list[str]] = []
    keys: ClassVar[list[str | None]] = []
    refusals: ClassVar[list[tuple[int, dict[str, Any]] | None]] = []
    """What the next requests get: a status with a body, or (None) no answer at all."""
    cut: ClassVar[list[int]] = []
    """Bytes after which the next downloads break off."""
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        if self.refused():
            return
        if self.path.startswith("/jobs/job/events"):
            self.stream(int(self.headers["Last-Event-ID"]))
        elif "/artifacts/" in self.path:
            self.download()
        else:
            self.asked.append(self.path)
            self.answer(200, JOB)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.keys.append(self.headers["Idempotency-Key"])
        if not self.refused():
            self.answer(201, JOB)

    def do_DELETE(self) -> None:
        self.do_POST()

    def refused(self) -> bool:
        if not self.refusals:
            return False
        if refusal := self.refusals.pop(0):
            self.answer(*refusal)
        return True

    def stream(self, after: int) -> None:
        self.asked.append(str(after))
        self.begin_stream()
        self.wfile.write(b"retry: 1000\n\n: heartbeat\n\n")
        first = max(after, 1)  # the one that was seen last comes again, as from a hasty proxy
        for number in range(first, min(after + 3, 6)):
            body = {"seq": number, "type": "log", "data": {"message": f"line {number}"}}
            self.wfile.write(f"id: {number}\ndata: {json.dumps(body)}\n\n".encode())
        self.wfile.write(b'data: {"type":"resync","after":1}\n\n')
        if after + 3 > 5:
            self.wfile.write(b'data: {"type":"end","status":"succeeded","last_seq":5}\n\n')
        else:
            self.wfile.write(b'id: 99\ndata: {"type":')

    def begin_stream(self, kind: str = "text/event-stream; charset=utf-8") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def download(self) -> None:
        start = int((self.headers["Range"] or "bytes=0-")[6:-1])
        self.asked.append(str(start))
        self.send_response(206 if start else 200)
        for name, value in {"ETag": f'"{SHA}"', "X-Checksum-Sha256": SHA}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(FILE) - start))
        self.end_headers()
        end = start + self.cut.pop(0) if self.cut else len(FILE)
        self.wfile.write((FILE if "right" in self.path else FILE[::-1])[start:end])

    def answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if status == 429:
            self.send_header("Retry-After", str(body["wait"]))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def serving(handler: type[Service]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))  # seconds of its poll
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def service() -> Iterator[str]:
    for each in (Service.asked, Service.keys, Service.refusals, Service.cut):
        each.clear()
    with serving(Service) as url:
        yield url


def awaited(url: str, use: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """What `use` returns of a client that awaits."""

    async def run() -> T:
        async with AsyncClient(url) as client:
            return await use(client)

    return anyio.run(run)


def test_a_broken_stream_goes_on_where_it_broke(service: str) -> None:
    with Client(service) as client:
        seen = list(client.jobs.events("job"))
    assert [frame.seq for frame in seen] == [1, 2, 3, 4, 5, None]
    assert Service.asked == ["0", "2", "4"]
    assert seen[-1].body == {"type": "end", "status": "succeeded", "last_seq": 5}


def test_a_broken_stream_goes_on_when_it_is_awaited(service: str) -> None:
    async def follow(client: AsyncClient) -> list[int | None]:
        return [frame.seq async for frame in client.jobs.events("job", after=1)]

    assert awaited(service, follow) == [2, 3, 4, 5, None]
    assert Service.asked == ["1", "3"]


class Quiet(Service):
    """Sends heartbeats alone for hours, is away once, and then has the end."""

    hours: ClassVar[list[int]] = []

    def stream(self, after: int) -> None:
        self.hours.append(after)
        if len(self.hours) == 2:
            self.answer(503, {"message": "starting", "errors": []})
            return
        self.begin_stream()
        self.wfile.write(b": heartbeat\n\n")
        if len(self.hours) == 3:
            self.wfile.write(b'data: {"type":"end","status":"succeeded","last_seq":0}\n\n')


class Elsewhere(Service):
    """The stream of all jobs: tells where it begins, and breaks off before anything happens."""

    def do_GET(self) -> None:
        self.asked.append(self.headers["Last-Event-ID"])
        self.begin_stream()
        if len(self.asked) == 1:
            self.wfile.write(b"retry: 1000\n\nid: here\n\n: heartbeat\n\n")
        else:
            self.wfile.write(b'id: next\ndata: {"seq": 1, "type": "log", "data": {}}\n\n')


def test_a_stream_that_breaks_before_its_first_event_goes_on_from_its_beginning() -> None:
    Elsewhere.asked.clear()
    with serving(Elsewhere) as url, Client(url) as client:
        [frame] = itertools.islice(client.events.follow(), 1)
    assert (frame.id, Elsewhere.asked) == ("next", [None, "here"])


class Page(Service):
    """Answers whatever is asked with a page, as the front end at another port does."""

    def do_GET(self) -> None:
        self.begin_stream("text/html")
        self.wfile.write(b"<html></html>\n\n")


def test_a_page_instead_of_events_is_told_and_not_waited_for() -> None:
    with (
        serving(Page) as url,
        Client(url) as client,
        pytest.raises(Unreachable, match=r"not by events \(text/html\)"),
    ):
        list(client.jobs.events("job", patience=0))


class Odd(Service):
    """Answers everything with the bytes and headers that it is told to."""

    status: ClassVar[int] = 200
    headers_of_it: ClassVar[dict[str, str]] = {}
    content: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        for name, value in self.headers_of_it.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.content)


JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream"}
ODD: list[tuple[str, int, dict[str, str], bytes, type[ClientError], str]] = [
    ("get", 200, JSON, b"{}", Unreachable, "not as POLAR does"),
    ("get", 200, JSON, b"[" * 100_000, Unreachable, "not as POLAR does"),
    ("get", 200, {**JSON, "Content-Encoding": "gzip"}, b"no gzip", Unreachable, "decompressing"),
    ("get", 400, JSON, b'{"message": "no", "errors": ["x", {"pointer": "/a"}]}', ApiError, "no"),
    ("get", 400, JSON, b'{"message": "no", "errors": {"a": "b"}}', ApiError, "no"),
    ("wait", 200, JSON, b'{"status": "succeeded"}', Unreachable, "not as POLAR does"),
    ("events", 307, {"Location": "http://other"}, b"", ApiError, "HTTP 307"),
    ("events", 200, EVENTS, b"data: {\n\n", Unreachable, "not by POLAR's events"),
    ("events", 200, EVENTS, b"data: [1]\n\n", Unreachable, "an event is an object"),
    ("events", 200, EVENTS, b'id: x\ndata: {"type": "log"}\n\n', Unreachable, "not by POLAR's"),
    ("events", 200, EVENTS, b"", Unreachable, "ends again and again without an event"),
    ("events", 429, {"Retry-After": "3600"}, b"", Unreachable, "HTTP 429"),
    ("file", 200, {"Content-Type": "text/html"}, b"<html>", Unreachable, r"\(text/html\): look at"),
    ("archive", 200, {"Content-Type": "text/html"}, b"<html>", Unreachable, r"\(text/html\)"),
]


@pytest.mark.parametrize(
    ("call", "status", "headers", "content", "kind", "told"), ODD, ids=lambda value: str(value)[:30]
)
def test_what_is_no_answer_of_the_service_is_told(
    call: str,
    status: int,
    headers: dict[str, str],
    content: bytes,
    kind: type[ClientError],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever stands between: an error of the SDK's own, and soon."""
    monkeypatch.setattr("polar.sdk.calls.PATIENCE", 0)
    Odd.status, Odd.headers_of_it, Odd.content = status, headers, content
    with serving(Odd) as url, Client(url) as client, pytest.raises(kind, match=told):
        {
            "get": lambda: client.jobs.get("job"),
            "wait": lambda: client.jobs.wait("job"),
            "events": lambda: list(client.jobs.events("job", patience=0)),
            "file": lambda: client.jobs.download("job", "a", tmp_path / "a"),
            "archive": lambda: client.jobs.download_archive("job", tmp_path / "a.tar"),
        }[call]()
    assert list(tmp_path.iterdir()) == []


def test_a_page_is_no_proof_of_a_deletion(service: str) -> None:
    Service.refusals[:] = [(200, "<html></html>")]
    with Client(service) as client, pytest.raises(Unreachable, match="not as POLAR does"):
        client.datasets.delete("ds")


HOLDS_ITSELF: dict[str, Any] = {}
HOLDS_ITSELF["again"] = [HOLDS_ITSELF]
UNSENDABLE: list[tuple[dict[str, Any], str]] = [
    ({"training": {"lr": float("nan")}}, r"`training\.lr` is nan, .* give a finite number"),
    ({"data": [{"path": Path("rows")}]}, r"`data\.0\.path` is a PosixPath, .* give text"),
    ({"name": "half \ud800"}, r"`name` is 'half \\ud800', which is not UTF-8"),
    ({"seed": 10**5000}, "`seed` has too many digits"),
    (HOLDS_ITSELF, "nested too deeply"),
    ({("a", "pair"): 1}, "the body is not JSON: keys must be str"),
]


@pytest.mark.parametrize(
    ("body", "told"), UNSENDABLE, ids=["nan", "path", "half", "digits", "itself", "key"]
)
def test_what_json_has_no_form_for_is_named(service: str, body: dict[str, Any], told: str) -> None:
    with Client(service) as client, pytest.raises(Unsendable, match=told):
        client.jobs.create(body)
    with pytest.raises(Unsendable, match=told):
        awaited(service, lambda client: client.jobs.create(body))
    assert (Service.keys, Service.asked) == ([], [])


def test_what_no_request_carries_is_named_before_it_is_sent(service: str, tmp_path: Path) -> None:
    odd = tmp_path / "odd\udcff.jsonl"
    odd.write_text("{}")
    with Client(service) as client:
        for call, told in (
            (lambda: client.jobs.create({}, idempotency_key="한글"), "the header Idempotency-Key"),
            (lambda: client.jobs.create({}, idempotency_key="a\nb"), "visible ASCII"),
            (lambda: client.jobs.get("job\ud800"), "the path is"),
            (lambda: client.jobs.page(q="\ud800"), r"q is '\\ud800', which is not UTF-8"),
            (lambda: client.request("PÖST", "/jobs"), "'PÖST' is no method: give GET"),
            (lambda: client.datasets.upload(odd), "is not UTF-8"),
            (lambda: list(client.events.follow(after="a\nb")), "the header Last-Event-ID"),
        ):
            with pytest.raises(Unsendable, match=told):
                call()
        with pytest.raises(NoService, match="is no path"):
            client.request("GET", "/job\ud800")
    assert (Service.keys, Service.asked) == ([], [])


def test_a_password_in_an_address_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polar.sdk.calls.PATIENCE", 0)
    with (
        Client(f"http://user:s3cret@127.0.0.1:{free_ports(1)[0]}") as client,
        pytest.raises(Unreachable, match="no answer from http://127") as away,
    ):
        client.jobs.get("job")
    with pytest.raises(NoService, match="is no address") as wrong:
        Client("http://user:s3cret@x..y/")
    assert "s3cret" not in f"{away.value} {client!r} {wrong.value}"


@pytest.mark.parametrize(
    "url",
    [
        *("polar.example", "ftp://polar.example", "http://", "http://.", f"http://{'a' * 64}.de"),
        *("http://127.0.0.1:0", "http://127.0.0.1:65536"),
    ],
)
def test_what_is_no_address_is_told_at_once(url: str) -> None:
    with pytest.raises(NoService, match="is no address of a service"):
        Client(url)


def test_the_key_goes_to_the_service_alone(service: str) -> None:
    Elsewhere.asked.clear()
    with (
        serving(Elsewhere) as other,
        Client(service, "polar_key") as client,
        pytest.raises(NoService, match="is an address: give a path of the API"),
    ):
        client.request("GET", f"{other}/jobs")
    with Client(f"{service}/below", "polar_key") as client:
        for path in ("/../elsewhere", "/%2e%2e/elsewhere"):
            with pytest.raises(NoService, match="the segment"):
                client.request("GET", path)
    assert Elsewhere.asked == []


def test_waiting_counts_the_time_of_the_answers(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By this clock an answer takes ten seconds: the second one comes after the fifteen.
    clock = SimpleNamespace(monotonic=lambda: 10.0 * len(Service.asked))
    monkeypatch.setattr("polar.sdk.jobs.time", clock)
    with Client(service) as client, pytest.raises(Waited, match="queued after 15 s"):
        client.jobs.wait("job", timeout=15)
    assert len(Service.asked) == 2


def test_hours_of_heartbeats_use_no_patience_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock goes on by an hour with each request that the service hears.
    clock = SimpleNamespace(monotonic=lambda: 3600.0 * len(Quiet.hours), sleep=lambda _: None)
    monkeypatch.setattr("polar.sdk.listening.time", clock)
    Quiet.hours.clear()
    with serving(Quiet) as url, Client(url) as client:
        [end] = client.jobs.events("job", patience=3700)
    assert (end.type, len(Quiet.hours)) == ("end", 3)


def test_refusals_carry_what_is_wrong_and_their_class(service: str) -> None:
    field = {"pointer": "/task/type", "message": "unknown", "value": "sftt"}
    problem = {"code": "invalid_payload", "message": "no", "request_id": "r", "errors": [field]}
    Service.refusals.append((422, problem))
    with Client(service) as client, pytest.raises(Invalid, match="/task/type: unknown") as caught:
        client.jobs.create({})
    error = caught.value
    assert (error.status, error.code, error.request_id) == (422, "invalid_payload", "r")
    assert error.problems == [("/task/type", "unknown", "sftt")]
    Service.refusals.append((404, {"message": "no such job"}))
    with Client(service) as client, pytest.raises(NotFound, match="no such job"):
        client.jobs.get("missing")


def test_a_submit_is_tried_again_with_the_same_key(service: str) -> None:
    busy = (409, {"code": "in_flight", "message": "it is being answered"})
    Service.refusals += [None, (503, {"message": "starting"}), busy, (429, {"wait": 0})]
    with Client(service) as client:
        job = client.jobs.create({"task": {"type": "sft"}})
        again = client.jobs.create({"task": {"type": "sft"}})
        client.jobs.create({}, idempotency_key="mine")
    assert (job.id, job.model_extra) == ("job_1", {"of_a_newer_service": 7})
    assert again.created_at == datetime(2026, 11, 30, 10, tzinfo=UTC)
    first, second, third = Service.keys[0], Service.keys[5], Service.keys[6]
    assert [first] * 5 == Service.keys[:5]
    assert first
    assert second not in (first, None)
    assert third == "mine"


def test_what_is_not_safe_is_sent_once(service: str) -> None:
    Service.refusals += [None]
    with Client(service) as client, pytest.raises(Unreachable):
        client.keys.create("ci")
    Service.refusals += [(503, {"message": "starting"})]
    with Client(service) as client, pytest.raises(ServerError, match="starting"):
        client.keys.create("ci")
    assert len(Service.keys) == 2


def test_waiting_as_asked_has_an_end(service: str) -> None:
    Service.refusals.append((429, {"wait": 3600, "message": "too many"}))
    with Client(service) as client, pytest.raises(RateLimited, match="too many") as caught:
        client.jobs.get("job_1")
    assert caught.value.retry_after == 3600
    with Client(service) as client, pytest.raises(Waited, match="job_1 is queued after 0 s"):
        client.jobs.get("job_1").wait(timeout=0)


def test_a_delete_whose_answer_was_lost_is_done(service: str) -> None:
    Service.refusals += [None, (404, {"message": "no such job"})]
    with Client(service) as client:
        client.jobs.delete("job_1")
        Service.refusals.append((404, {"message": "no such job"}))
        with pytest.raises(NotFound):
            client.jobs.delete("job_1")


def test_a_cut_download_goes_on_and_is_checked(service: str, tmp_path: Path) -> None:
    Service.cut += [3000, 4000]
    with Client(service) as client:
        client.jobs.download("job", "model/right", tmp_path / "deep" / "right")
    assert (tmp_path / "deep" / "right").read_bytes() == FILE
    assert Service.asked == ["0", "3000", "7000"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["right"]


def test_a_wrong_download_leaves_no_file(service: str, tmp_path: Path) -> None:
    with Client(service) as client, pytest.raises(Corrupt, match="was announced"):
        client.jobs.download("job", "model/wrong", tmp_path / "weights")
    assert list(tmp_path.iterdir()) == []

    async def get(client: AsyncClient) -> Path:
        return await client.jobs.download("job", "model/right", tmp_path / "right")

    assert awaited(service, get).read_bytes() == FILE


def test_an_archive_that_is_cut_again_and_again_ends(tmp_path: Path) -> None:
    """It begins at 0 each time, so that only what goes beyond all tries before is progress."""
    course = download_archive("/artifacts", tmp_path / "a.tar")
    answer = httpx.Response(200, headers={"Content-Type": ARCHIVE})
    tries = []

    def cut_all() -> None:
        for size in itertools.cycle([5000, 4000]):
            tries.append(next(course))
            tries[-1].sink.begin(answer)
            tries[-1].sink.write(b"x" * size)
            course.throw(Unreachable("cut"))  # a pause is what it wants now

    with pytest.raises(Unreachable, match="cut"):
        cut_all()
    assert len(tries) == ATTEMPTS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [".", "..", "there"])
def test_a_folder_is_no_place_for_a_file(service: str, tmp_path: Path, place: str) -> None:
    (tmp_path / "there").mkdir()
    with (
        chdir(tmp_path),
        Client(service) as client,
        pytest.raises(IsADirectoryError, match="name the file"),
    ):
        client.jobs.download("job", "model/right", Path(place))
    assert Service.asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_two_downloads_to_one_place_keep_apart(tmp_path: Path) -> None:
    target = tmp_path / "right"
    slow, quick = Draft(target, SHA), Draft(target, SHA)
    for draft, content in ((slow, FILE[::-1]), (quick, FILE)):
        draft.begin(httpx.Response(200))
        draft.write(content)
    quick.finish()
    slow.write(b"more")
    with pytest.raises(Corrupt, match="was announced"):
        slow.finish()
    assert target.read_bytes() == FILE


def test_a_model_lies_in_its_folder_alone(tmp_path: Path) -> None:
    assert inside(tmp_path, "a/b") == tmp_path / "a" / "b"
    with pytest.raises(Corrupt, match="outside"):
        inside(tmp_path, "../b")


def test_nobody_there_is_said_after_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polar.sdk.calls.PATIENCE", 0)
    with Client(f"http://127.0.0.1:{free_ports(1)[0]}") as client:
        with pytest.raises(Unreachable, match="no answer from"):
            client.jobs.get("job")
        with pytest.raises(Unreachable, match="for 0 s"):
            list(client.jobs.events("job", patience=0))


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLAR_URL", raising=False)
    with pytest.raises(NoService, match="POLAR_URL"):
        Client()
    monkeypatch.setenv("POLAR_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("POLAR_API_KEY", "polar_abc_secret")
    with Client() as client:
        assert (client.url, client.key) == ("http://127.0.0.1:1", "polar_abc_secret")
        assert "secret" not in repr(client) + repr(client.jobs) + str(client)


def test_both_clients_have_the_same_operations(service: str) -> None:
    async def names(client: AsyncClient) -> set[str]:
        return operations_of(client)

    with Client(service) as client:
        assert operations_of(client) == awaited(service, names)
        assert "jobs.create" in operations_of(client)


def operations_of(client: Client | AsyncClient) -> set[str]:
    return {
        f"{resource}.{name}"
        for resource, value in vars(client).items()
        for name in dir(value)
        if not (resource.startswith("_") or name.startswith("_"))
    }


def test_importing_the_package_loads_nothing_of_it() -> None:
    program = "import sys, polar; print([m for m in ('httpx', 'pydantic') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    assert all(getattr(polar, name).__name__ == name for name in polar.__all__)


def test_the_classes_of_answers_are_those_of_the_description() -> None:
    """`make openapi` writes both."""
    document = json.loads((ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8"))
    written = (ROOT / "polar" / "sdk" / "answers.py").read_text(encoding="utf-8")
    assert formatted(generated(document)) == written


def test_secrets_are_in_no_text_of_an_answer() -> None:
    for name in HIDDEN:
        kind, _, field = name.partition(".")
        assert getattr(answers, kind).model_fields[field].repr is False


def test_frames_are_read_as_the_standard_says() -> None:
    text = 'id: 7\ndata: {"type":\ndata: "log"}\n\n: comment\n\ndata: {"type": "cut"}'
    assert list(Decoder().feed(text)) == [Frame("7", {"type": "log"})]


def test_a_line_ends_at_a_line_feed_and_nowhere_else() -> None:
    text = 'id: 1\r\ndata: {"a": "x\u2028y\x85z"}\n\nid: 2\ncut'
    decoder = Decoder()
    pieces = [text[:9], text[9:20], text[20:]]
    [frame] = [frame for piece in pieces for frame in decoder.feed(piece)]
    assert frame == Frame("1", {"a": "x\u2028y\x85z"})


def test_a_manifest_is_checked_to_the_byte(tmp_path: Path) -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256 of nothing
    listed = {"files": [{"path": "a", "size": 0, "sha256": empty}]}
    (tmp_path / "manifest.json").write_text(json.dumps(listed))
    with pytest.raises(Mismatch, match="a is in the manifest and was not published"):
        verify(tmp_path)
    (tmp_path / "a").touch()
    assert verify(tmp_path) == 1
    (tmp_path / "a").write_text("x")
    with pytest.raises(Mismatch, match="a differs"):
        verify(tmp_path)
