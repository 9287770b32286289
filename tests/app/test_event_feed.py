"""Streams under stress: restarts, many clients, slow clients, late commits."""

import asyncio
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from sqlalchemy import make_url

from app.events.source import SCANNED
from tests.app.server import Api, running
from tests.app.streams import (
    Frame,
    append,
    fail,
    frames_of,
    log,
    metric,
    new_job,
    seqs,
    stream,
)
from tests.services import wait_until

pytestmark = pytest.mark.usefixtures("nudges")


def test_b21_no_gap_and_no_duplicate_across_a_killed_api(api: Api) -> None:
    """A client that resumes by its last id sees each event once, whatever happens to the API."""
    job, total = new_job(api), 330
    seen: list[int] = []
    rest: list[Frame] = []
    stop = threading.Event()

    def write() -> None:
        for number in range(1, total + 1):
            while number > len(seen) + 60 and not stop.is_set():
                stop.wait(0.002)  # however slowly an API starts, there is more to come
            append(api, job, log(number))
        fail(api, job)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for kill_at in (60, 230):
            with running(api.environment, api.key) as mortal:
                resumed = _read_until(mortal, job, seen, kill_at)
                assert not any(frame.type == "end" for frame in resumed)
        with stream(api.client, f"/jobs/{job}/events", last_event_id=str(seen[-1])) as frames:
            for frame in frames:
                rest.append(frame)
                seen += seqs([frame])
    finally:
        stop.set()
        writer.join()
    assert seen == list(range(1, total + 2))
    assert rest[-1].data == {"type": "end", "status": "failed", "last_seq": total + 1}


def _read_until(mortal: Api, job: str, seen: list[int], kill_at: int) -> list[Frame]:
    """Read on from the last id, kill the API after event `kill_at`, read what was still sent."""
    got: list[Frame] = []
    after = str(seen[-1]) if seen else None
    try:
        with stream(mortal.client, f"/jobs/{job}/events", last_event_id=after) as frames:
            for frame in frames:
                got.append(frame)
                seen += seqs([frame])
                if frame.id and int(frame.id) == kill_at:
                    mortal.process.send_signal(signal.SIGKILL)
    except httpx.TransportError:
        pass  # what a killed server looks like
    return got


def test_b20_a_stopping_api_ends_its_streams_at_once_without_end_frame(api: Api) -> None:
    job = new_job(api)
    append(api, job, log(1))
    with running(api.environment, api.key) as stopping:
        with stream(stopping.client, f"/jobs/{job}/events") as frames:
            seen = [next(frames), next(frames)]
            stopping.process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            seen += list(frames)  # a clean end of the body, not a broken connection
        stopping.process.wait(15)
        # Far below the 10 s for which uvicorn waits for requests that do not end.
        assert time.monotonic() - begun < 8
    assert seqs(seen) == [1]
    assert "end" not in [frame.type for frame in seen]


async def _open(api: Api, job: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET /jobs/{job}/events HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {api.key}\r\n\r\n".encode()
    )
    return reader, writer


async def _until(reader: asyncio.StreamReader, marker: bytes) -> None:
    await asyncio.wait_for(reader.readuntil(marker), timeout=60)


def test_b23_many_streams_hold_no_database_connection(api: Api) -> None:
    """200 streams and a pool of 5: all are served, other requests too, connections stay few."""
    job = new_job(api)

    async def watch(small: Api) -> int:
        opened = [await _open(small, job) for _ in range(200)]
        await asyncio.gather(*(_until(reader, b"retry: 2000\n\n") for reader, _ in opened))
        await asyncio.to_thread(append, api, job, log(1))
        await asyncio.gather(*(_until(reader, b'"line 1"}}\n\n') for reader, _ in opened))
        held = _database_connections(small)
        answer = await asyncio.to_thread(small.client.get, f"/jobs/{job}")
        assert answer.status_code == 200
        await asyncio.to_thread(fail, api, job)
        await asyncio.gather(*(_until(reader, b'"last_seq":2}\n\n') for reader, _ in opened))
        for _, writer in opened:
            writer.close()
        return held

    with running({**api.environment, "POLAR_THREADS": "5"}, api.key) as small:
        # A pool of 5, and at most 4 more for moments.
        assert 1 <= asyncio.run(watch(small)) <= 9


def _database_connections(api: Api) -> int:
    port = make_url(api.environment["POLAR_DATABASE_URL"]).port
    open_ = psutil.Process(api.process.pid).net_connections("tcp")
    return sum(c.status == psutil.CONN_ESTABLISHED and c.raddr.port == port for c in open_)


def test_b21_a_slow_client_is_told_to_resync_and_misses_nothing(api: Api) -> None:
    """Frames beyond the bounded queue are dropped and read again from Postgres."""
    job, rounds, size = new_job(api), 20, 150
    dropped = metric(api, "polar_stream_frames_dropped_total")
    padding = "x" * 4000
    host, port = api.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.settimeout(30)
        client.sendall(
            f"GET /jobs/{job}/events HTTP/1.0\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {api.key}\r\n\r\n".encode()
        )
        received = client.recv(4096)
        while b"retry: 2000" not in received:
            received += client.recv(4096)
        for _ in range(rounds):
            append(api, job, [("log", {"level": "info", "message": padding})] * size)
        fail(api, job)
        wait_until(lambda: metric(api, "polar_stream_frames_dropped_total") > dropped)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        while chunk := client.recv(65536):
            received += chunk
    body = received.split(b"\r\n\r\n", 1)[1].decode()
    frames = list(frames_of(iter([body])))
    assert seqs(frames) == list(range(1, rounds * size + 2))
    resyncs = [f.data for f in frames if f.data and f.data["type"] == "resync"]
    assert resyncs
    for index, frame in enumerate(frames):
        if frame.type == "resync":
            assert frame.id is None
            before = [f for f in frames[:index] if f.id]
            assert frame.data == {
                "type": "resync",
                "after": int(before[-1].id or 0) if before else 0,
            }
    assert frames[-1].type == "end"
    assert metric(api, "polar_stream_resyncs_total") >= len(resyncs)


def test_all_jobs_in_one_stream_resumed_by_opaque_ids(api: Api) -> None:
    jobs = [new_job(api), new_job(api)]
    with stream(api.client, "/events", types="log") as frames:
        seen = [next(frames)]
        for number in range(1, 6):
            append(api, jobs[number % 2], log(number))
        while sum(frame.data is not None for frame in seen) < 5:
            seen.append(next(frames))
    events = [frame for frame in seen if frame.data]
    messages = [frame.data["data"]["message"] for frame in events if frame.data]
    assert messages == [f"line {number}" for number in range(1, 6)]
    assert len({frame.id for frame in events}) == 5
    # Whose connection broke before the first event goes on from the id of the first frame.
    with stream(api.client, "/events", last_event_id=seen[0].id, types="log") as frames:
        again = [next(frames) for _ in range(6)]
    assert [frame.id for frame in again[1:]] == [frame.id for frame in events]
    with stream(api.client, "/events", last_event_id=events[2].id, types="log") as frames:
        seen = [next(frames) for _ in range(3)]
    assert [frame.id for frame in seen[1:]] == [events[3].id, events[4].id]
    page = api.client.get("/events", params={"after": events[2].id, "limit": 1}).json()
    assert page["has_more"] is True
    assert page["data"] == [events[3].data]
    page = api.client.get("/events", params={"after": page["next_after"], "types": "log"}).json()
    assert page["data"] == [events[4].data]
    assert page["has_more"] is False


def test_b22_a_late_commit_is_not_skipped(api: Api) -> None:
    """A transaction that began first and commits last still shows, and in its place."""
    early, late = new_job(api), new_job(api)
    url = api.environment["POLAR_DATABASE_URL"].replace("+psycopg", "")
    insert = (
        "WITH job AS (UPDATE jobs SET last_seq = last_seq + 1 WHERE id = %s RETURNING *) "
        "INSERT INTO job_events (job_id, seq, project_id, type, data) "
        "SELECT id, last_seq, project_id, 'log', jsonb_build_object('message', %s::text) FROM job"
    )
    with ExitStack() as stack:
        first = stack.enter_context(psycopg.connect(url))
        second = stack.enter_context(psycopg.connect(url))
        frames = stack.enter_context(stream(api.client, "/events", types="log"))
        next(frames)
        first.execute(insert, (late, "began first, committed last"))
        second.execute(insert, (early, "began last, committed first"))
        second.commit()
        # Nothing may pass while the older transaction is open: neither as page nor as frame.
        page = api.client.get("/events", params={"limit": 1000}).json()
        assert "began last, committed first" not in str(page["data"])
        first.commit()
        got = [next(frames), next(frames)]
    assert [frame.data["data"]["message"] for frame in got if frame.data] == [
        "began first, committed last",
        "began last, committed first",
    ]


@pytest.mark.parametrize("cursor", ["x", "MTIz", "-1", "MS4uMA==", "OTk5OTk5OTk5OTk5Li4w", "%"])
def test_cursors_over_all_jobs_are_checked(api: Api, cursor: str) -> None:
    for headers in ({"Accept": "text/event-stream"}, {}):
        answer = api.client.get("/events", params={"after": cursor}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


def test_progress_of_all_jobs_is_streamed(api: Api) -> None:
    job = new_job(api)
    with stream(api.client, "/events", types="progress") as frames:
        next(frames)
        api.write("UPDATE jobs SET progress = '{\"step\": 9}' WHERE id = :id", id=job)
        frame = next(f for f in frames if f.data and f.data["job_id"] == job)
    assert (frame.id, frame.data) == (
        None,
        {"job_id": job, "type": "progress", "data": {"step": 9}},
    )


def test_b23_a_client_that_left_is_forgotten(api: Api) -> None:
    """The process keeps no socket of streams whose clients have gone."""
    job = new_job(api)
    folder = Path(f"/proc/{api.process.pid}/fd")
    before = len(list(folder.iterdir()))
    with ExitStack() as stack:
        opened = []  # an iterator that is forgotten closes its response
        for _ in range(20):
            client = stack.enter_context(api.with_key(api.key))
            opened.append(stack.enter_context(stream(client, f"/jobs/{job}/events")))
            next(opened[-1])
        assert len(list(folder.iterdir())) >= before + 20
    wait_until(lambda: len(list(folder.iterdir())) <= before + 2, timeout=20)


def test_b23_open_streams_are_counted(api: Api) -> None:
    job, before = new_job(api), metric(api, "polar_streams")
    with api.with_key(api.key) as client, stream(client, f"/jobs/{job}/events") as frames:
        next(frames)
        assert metric(api, "polar_streams") == before + 1
    wait_until(lambda: metric(api, "polar_streams") == before)
    assert metric(api, "polar_nudges_connected") == 1


def test_b31_streams_of_a_revoked_key_end_within_seconds(api: Api) -> None:
    """They end without an `end` frame: whoever may still read resumes with another key."""
    made = api.client.post("/api-keys", json={"name": "leaves", "role": "viewer"}).json()
    job = new_job(api)
    with (
        api.with_key(made["key"]) as leaving,
        api.with_key(api.key) as staying,
        stream(staying, f"/jobs/{job}/events") as kept,
        stream(leaving, f"/jobs/{job}/events") as of_job,
        api.with_key(made["key"]) as second,
        stream(second, "/events") as of_all,
    ):
        firsts = [next(frames).retry for frames in (kept, of_job, of_all)]
        assert firsts == ["2000"] * 3
        assert api.client.delete(f"/api-keys/{made['id']}").status_code == 204
        begun = time.monotonic()
        assert [frame.type for frame in of_job if frame.data] == []
        assert [frame.type for frame in of_all if frame.id] == []
        assert time.monotonic() - begun < 10  # looked at once a second
        append(api, job, log(1))
        assert next(kept).type == "log"
        assert leaving.get(f"/jobs/{job}/events").status_code == 401


def test_b23_a_client_that_takes_nothing_is_let_go(api: Api) -> None:
    job, padding = new_job(api), "x" * 4000
    for _ in range(20):  # more than what lies in sockets
        append(api, job, [("log", {"level": "info", "message": padding})] * 150)
    with (
        running({**api.environment, "POLAR_DOWNLOAD_STALL": "1"}, api.key) as other,
        socket.socket() as client,
    ):
        host, port = other.url.removeprefix("http://").split(":")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.settimeout(30)
        client.sendall(
            f"GET /jobs/{job}/events HTTP/1.1\r\nHost: polar\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {api.key}\r\n\r\n".encode()
        )
        client.recv(1024)
        with other.with_key(api.key) as patient, stream(patient, f"/jobs/{job}/events") as frames:
            while int(next(frames).id or 0) < 3000:  # it takes all that there is
                pass
            wait_until(lambda: "client took nothing" in other.log.read_text())
            wait_until(lambda: metric(other, "polar_streams") == 1)  # the one that reads
            # Its socket is gone, with all that waited in the server for this client.
            own = client.getsockname()[1]
            wait_until(lambda: own not in ports_of_clients(other))
            assert "without completing response" not in other.log.read_text()
            fail(api, job)
            *_, last = frames
            assert last.type == "end"


def test_a_reader_that_fails_begins_again(api: Api) -> None:
    """Whatever it was: here, a column that is missing for a while."""
    job = new_job(api)

    def failures() -> int:
        return api.log.read_text().count("a reader of events failed")

    with stream(api.client, f"/jobs/{job}/events") as frames:
        append(api, job, log(1))
        assert next(f for f in frames if f.id).id == "1"  # from now on it reads nothing itself
        before = failures()
        api.write("ALTER TABLE jobs RENAME COLUMN progress TO away")
        try:
            append(api, job, log(2))
            wait_until(lambda: failures() >= before + 2)
        finally:
            api.write("ALTER TABLE jobs RENAME COLUMN away TO progress")
        append(api, job, log(3))
        assert [next(f for f in frames if f.id).id for _ in range(2)] == ["2", "3"]


def test_rare_types_are_read_in_short_statements(api: Api) -> None:
    """Each looks at so many events at most: a page may be empty and say that there is more."""
    many, job = SCANNED * 5 // 2, new_job(api)
    start = "0"
    while (page := _page(api, after=start, limit=1000))["has_more"]:
        start = page["next_after"]
    start = page["next_after"]
    api.write(
        "WITH job AS (UPDATE jobs SET last_seq = :many WHERE id = :job)"
        " INSERT INTO job_events (job_id, seq, project_id, type, data) SELECT :job, n,"
        " 'prj_default', 'log', '{}' FROM generate_series(1, :many) AS n",
        job=job,
        many=many,
    )
    append(api, job, [("checkpoint", {"step": 4}), *log(1)])
    readable = (
        "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > max(xid)"
        " FROM job_events WHERE job_id = :job"
    )
    wait_until(lambda: api.rows(readable, job=job) == [(True,)])
    found: list[dict[str, Any]] = []
    pages, after = 0, start
    while not found:
        page = _page(api, after=after, types="checkpoint")
        found, pages = page["data"], pages + 1
        assert page["has_more"] == (pages < 3)
        after = page["next_after"]
    assert pages == 3
    assert [event["seq"] for event in found] == [many + 1]
    whole = _page(api, after=start, types="checkpoint,status,log", limit=1000)
    assert [event["seq"] for event in whole["data"]] == list(range(1, 1001))
    with stream(api.client, "/events", last_event_id=start, types="checkpoint") as frames:
        first = next(frame for frame in frames if frame.data)
    assert first.data
    assert (first.type, first.data["job_id"], first.data["seq"]) == ("checkpoint", job, many + 1)


def _page(api: Api, **query: str | int) -> dict[str, Any]:
    page: dict[str, Any] = api.client.get("/events", params=query).json()
    return page


def ports_of_clients(api: Api) -> list[int]:
    """Ports of those that the API has a socket for."""
    sockets = psutil.Process(api.process.pid).net_connections("tcp")
    return [each.raddr.port for each in sockets if each.raddr]
