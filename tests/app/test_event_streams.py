"""Streams of one job over HTTP: replay, live frames, filters, heartbeats, ends and bad cursors."""

import time

import httpx
import pytest

from tests.app.server import Api, running
from tests.app.streams import (
    append,
    fail,
    log,
    new_job,
    read_to_end,
    seqs,
    stream,
)

pytestmark = pytest.mark.usefixtures("nudges")


def test_a_finished_job_is_replayed_and_ended(api: Api) -> None:
    job = new_job(api)
    append(api, job, log(*range(1, 451)))  # three pages of replay
    fail(api, job)
    frames = read_to_end(api.client, f"/jobs/{job}/events")
    assert frames[0].retry == "2000"
    assert [frame.retry for frame in frames[1:]] == [None] * 452
    assert seqs(frames) == list(range(1, 452))
    first, last = frames[1].data, frames[-1]
    assert first is not None
    assert list(first) == ["seq", "job_id", "time", "type", "data"]
    assert (first["job_id"], first["type"]) == (job, "log")
    assert first["time"].endswith("Z")
    assert first["data"] == {"level": "info", "message": "line 1"}
    assert (last.id, last.data) == (None, {"type": "end", "status": "failed", "last_seq": 451})


@pytest.mark.parametrize("after", [0, 1, 199, 200, 449, 450, 451])
def test_replay_after_any_id(api: Api, after: int) -> None:
    job = new_job(api)
    append(api, job, log(*range(1, 451)))
    fail(api, job)
    path = f"/jobs/{job}/events"
    expected = list(range(after + 1, 452))
    assert seqs(read_to_end(api.client, path, after=str(after))) == expected
    by_header = read_to_end(api.client, path, last_event_id=str(after), after="5")
    assert seqs(by_header) == expected


def test_b21_live_events_follow_the_replay(api: Api) -> None:
    job = new_job(api)
    append(api, job, log(1, 2))
    with stream(api.client, f"/jobs/{job}/events") as frames:
        seen = [next(frames) for _ in range(3)]
        append(api, job, log(3))
        seen.append(next(frames))
        append(api, job, log(4, 5))
        api.write("UPDATE jobs SET progress = '{\"step\": 7}' WHERE id = :id", id=job)
        seen += [next(frames) for _ in range(3)]
        fail(api, job)
        seen += list(frames)
    assert seqs(seen) == [1, 2, 3, 4, 5, 6]
    progress = [frame for frame in seen if frame.type == "progress"]
    assert [(p.id, p.data) for p in progress] == [
        (None, {"job_id": job, "type": "progress", "data": {"step": 7}})
    ]
    assert seen[-1].data == {"type": "end", "status": "failed", "last_seq": 6}


def test_types_are_filtered_in_replay_and_live(api: Api) -> None:
    job = new_job(api)
    append(api, job, [*log(1), ("metrics", {"loss": 1.5}), *log(2)])
    with stream(api.client, f"/jobs/{job}/events", types="metrics,status") as frames:
        seen = [next(frames), next(frames)]
        append(api, job, log(3))
        append(api, job, [("metrics", {"loss": 1.0})])
        api.write("UPDATE jobs SET progress = '{\"step\": 7}' WHERE id = :id", id=job)
        fail(api, job)
        seen += list(frames)
    assert seqs(seen) == [2, 5, 6]
    assert [frame.type for frame in seen[1:]] == ["metrics", "metrics", "status", "end"]


def test_a_new_reader_gets_the_newest_progress(api: Api) -> None:
    job = new_job(api)
    append(api, job, log(1))
    api.write("UPDATE jobs SET progress = '{\"step\": 3}' WHERE id = :id", id=job)
    with stream(api.client, f"/jobs/{job}/events") as frames:
        seen = [next(frames) for _ in range(3)]
    assert [frame.type for frame in seen] == [None, "log", "progress"]


def test_a_deleted_job_ends_its_stream(api: Api) -> None:
    job = new_job(api)
    append(api, job, log(1))
    with stream(api.client, f"/jobs/{job}/events") as frames:
        seen = [next(frames), next(frames)]
        api.write("DELETE FROM jobs WHERE id = :id", id=job)
        seen += list(frames)
    assert seen[-1].data == {"type": "end", "status": "deleted", "last_seq": 1}


@pytest.mark.parametrize("cursor", ["-1", "2", "1.0", "abc", "٣", "99999999999999999999999", " 1"])
def test_a_cursor_that_is_none_is_a_clear_400(api: Api, cursor: str) -> None:
    job = new_job(api)
    append(api, job, log(1))
    for headers in ({"Accept": "text/event-stream"}, {}):
        answer = api.client.get(f"/jobs/{job}/events", params={"after": cursor}, headers=headers)
        assert answer.status_code == 400, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == "invalid_cursor"


def test_unknown_types_and_parameters_are_named(api: Api) -> None:
    job = new_job(api)
    answer = api.client.get(f"/jobs/{job}/events", params={"types": "status,metric"})
    assert answer.status_code == 422
    assert "'metric'" in answer.json()["message"]
    answer = api.client.get(f"/jobs/{job}/events", params={"afer": "1"})
    assert answer.status_code == 422
    assert "did you mean `after`?" in answer.json()["message"]


def test_pages_hold_the_same_events(api: Api) -> None:
    job = new_job(api)
    append(api, job, [*log(1, 2), ("metrics", {"loss": 1.5}), *log(3)])
    path = f"/jobs/{job}/events"
    page = api.client.get(path, params={"limit": 3}).json()
    assert [event["seq"] for event in page["data"]] == [1, 2, 3]
    assert (page["next_after"], page["has_more"]) == (3, True)
    page = api.client.get(path, params={"limit": 3, "after": 3}).json()
    assert [event["seq"] for event in page["data"]] == [4]
    assert (page["next_after"], page["has_more"]) == (4, False)
    page = api.client.get(path, params={"types": "metrics"}).json()
    assert [event["data"] for event in page["data"]] == [{"loss": 1.5}]
    assert (page["next_after"], page["has_more"]) == (4, False)


def test_other_projects_jobs_are_not_there(api: Api) -> None:
    api.write("INSERT INTO projects (id, name) VALUES ('prj_x', 'x') ON CONFLICT DO NOTHING")
    job = new_job(api, "prj_x")
    for headers in ({"Accept": "text/event-stream"}, {}):
        answer = api.client.get(f"/jobs/{job}/events", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")


@pytest.mark.parametrize("form", ["comment", "event"])
def test_b24_silence_is_broken(api: Api, form: str) -> None:
    job = new_job(api)
    with (
        running({**api.environment, "POLAR_HEARTBEAT": "0.2"}, api.key) as quick,
        stream(quick.client, f"/jobs/{job}/events", heartbeat=form, types="status") as frames,
    ):
        next(frames)
        for number in range(1, 4):
            append(api, job, log(number))  # filtered out: the stream stays silent
            frame = next(frames)
            assert frame.id is None
            if form == "event":
                assert frame.data == {"type": "heartbeat"}
            else:
                assert (frame.data, frame.comments) == (None, ["heartbeat"])


def test_without_a_broker_events_still_come_soon(api: Api) -> None:
    job = new_job(api)
    nowhere = {**api.environment, "POLAR_BROKER_URL": "redis://127.0.0.1:9/0"}
    with (
        running(nowhere, api.key) as lonely,
        stream(lonely.client, f"/jobs/{job}/events") as frames,
    ):
        next(frames)
        begun = time.monotonic()
        append(api, job, log(1))
        assert next(frames).type == "log"
        assert time.monotonic() - begun < 5  # the poll looks once a second
        fail(api, job)
        assert [frame.type for frame in frames] == ["status", "end"]


def test_head_and_wrong_methods_are_refused(api: Api) -> None:
    answer = httpx.post(f"{api.url}/events", headers={"Authorization": f"Bearer {api.key}"})
    assert answer.status_code == 405
