"""Events of jobs that ended long ago lie in the object store, and nobody who reads notices."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy.exc

import app.db
import app.events.archiving as archiving
from app.settings import get_settings
from app.storage import Store
from tests.app.server import Api
from tests.app.stored import store_of
from tests.app.streams import append, fail, log, new_job, read_to_end, seqs, stream


@pytest.fixture(autouse=True)
def _here(api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Archive from this process, in the database of the API under test."""

    def forget() -> None:
        app.db.get_engine.cache_clear()
        app.db._autocommit.cache_clear()
        get_settings.cache_clear()

    monkeypatch.setenv("POLAR_DATABASE_URL", api.environment["POLAR_DATABASE_URL"])
    monkeypatch.setattr(archiving, "RANGE_EVENTS", 100)
    forget()
    yield
    app.db.get_engine().dispose()
    forget()


def archive(api: Api, days: float = 0.0) -> int:
    return archiving.archive_events(store_of(api), days, 60)


def filled(api: Api, count: int = 450) -> str:
    """A failed job with log lines, metrics in between, and its end as the last event."""
    job = new_job(api)
    for first in range(1, count + 1, 90):
        batch = log(*range(first, min(first + 90, count + 1)))
        append(api, job, [*batch, ("metrics", {"step": first, "loss": 1 / first})])
    fail(api, job)
    return job


def everything(api: Api, job: str) -> dict[str, Any]:
    """What every way of reading says about the job."""
    path = f"/jobs/{job}"
    pages, after, more = [], 0, True
    while more:
        page = api.client.get(f"{path}/events", params={"after": after, "limit": 170}).json()
        pages += page["data"]
        after, more = page["next_after"], page["has_more"]
    kinds = {"types": "metrics,status"}
    return {
        "stream": [f.data for f in read_to_end(api.client, f"{path}/events")],
        "resumed": [f.data for f in read_to_end(api.client, f"{path}/events", after="333")],
        "typed": [f.data for f in read_to_end(api.client, f"{path}/events", **kinds)],
        "pages": pages,
        "page": api.client.get(f"{path}/events", params={"limit": 1000}).json(),
        "few": api.client.get(f"{path}/events", params={**kinds, "limit": 3}).json(),
        "logs": api.client.get(f"{path}/logs").text,
        "after": api.client.get(f"{path}/logs", params={"after": 123}).text,
        "tail": api.client.get(f"{path}/logs", params={"tail": 210}).text,
        "tail of few": api.client.get(f"{path}/logs", params={"tail": 5}).text,
        "rank": api.client.get(f"{path}/logs", params={"rank": 1}).text,
        "metrics": api.client.get(f"{path}/metrics").json(),
        "newest": api.client.get(f"/v1/fine_tuning{path}/events", params={"limit": 4}).json(),
        "csv": api.client.get(f"{path}/metrics", params={"format": "csv"}).text,
    }


def test_whatever_is_read_is_the_same_from_the_archive(api: Api) -> None:
    job = filled(api)
    before = everything(api, job)
    assert archive(api) >= 456
    assert api.rows("SELECT count(*) FROM job_events WHERE job_id = :j", j=job) == [(0,)]
    state = "SELECT last_seq, archived_seq FROM jobs WHERE id = :j"
    assert api.rows(state, j=job) == [(456, 456)]
    keys = [k for (k,) in api.rows("SELECT key FROM event_ranges WHERE job_id = :j", j=job)]
    assert len(keys) == 5
    after = everything(api, job)
    for name, found in before.items():
        assert after[name] == found, name
    assert archive(api) == 0
    assert api.client.delete(f"/jobs/{job}").status_code == 204
    assert [store_of(api).head(key) for key in keys] == [None] * 5


def test_a_page_may_begin_in_the_archive_and_end_in_postgres(api: Api) -> None:
    """While a job is being archived, both halves are read as one."""
    job = filled(api)
    before = everything(api, job)
    found = archiving._Job(job, "prj_default", 0, 456)
    assert archiving._archive_range(store_of(api), found, 0) == 100
    assert archiving._archive_range(store_of(api), found, 100) == 200
    after = everything(api, job)
    for name in set(before) - {"page", "few"}:  # a page ends where the archive does
        assert after[name] == before[name], name
    page = after["page"]
    assert (page["data"], page["next_after"]) == (before["pages"][:200], 200)
    assert page["has_more"] is True


def test_b21_readers_meet_the_archive_at_work_and_miss_nothing(api: Api) -> None:
    """Streams, pages and logs that are read again and again while ranges leave Postgres."""
    job = filled(api, 2000)
    total = api.rows("SELECT last_seq FROM jobs WHERE id = :j", j=job)[0][0]
    done = threading.Event()
    failures: list[str] = []

    def read() -> None:
        client = api.with_key(api.key)
        while not done.is_set():
            if seqs(read_to_end(client, f"/jobs/{job}/events")) != list(range(1, total + 1)):
                failures.append("stream")
            if len(client.get(f"/jobs/{job}/logs").text.splitlines()) != 2000:
                failures.append("logs")
            if len(client.get(f"/jobs/{job}/metrics").json()["series"]["loss"]) != 23:
                failures.append("metrics")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    assert archive(api) >= total
    done.set()
    for reader in readers:
        reader.join()
    assert failures == []


def test_only_what_ended_long_ago_is_archived(api: Api) -> None:
    archive(api)
    job, recent = new_job(api), filled(api, 10)
    append(api, job, log(1))
    assert archive(api, days=1.0) == 0
    api.write("INSERT INTO mlflow_runs (job_id, project_id) VALUES (:j, 'prj_default')", j=recent)
    assert archive(api) == 0  # MLflow has not got its metrics yet
    api.write("UPDATE mlflow_runs SET closed_status = 'FAILED' WHERE job_id = :j", j=recent)
    assert archive(api) == 12
    assert api.rows("SELECT archived_seq FROM jobs WHERE id = :j", j=job) == [(0,)]


def test_b21_a_cursor_over_all_jobs_that_is_too_old_says_so(api: Api) -> None:
    """The stream begins with `resync`, the page is `expired`; newer cursors are as always."""
    job = new_job(api)
    with stream(api.client, "/events", types="log") as frames:
        next(frames)
        append(api, job, log(1, 2))
        old = [next(frames), next(frames)][0].id
    assert api.client.get("/events", params={"after": old}).json()["expired"] is False
    fail(api, job)
    archive(api)
    page = api.client.get("/events", params={"after": old}).json()
    assert page["expired"] is True
    assert [e for e in page["data"] if e["job_id"] == job] == []
    with stream(api.client, "/events", last_event_id=old, types="log") as frames:
        assert [next(frames).type for _ in range(2)] == [None, "resync"]
    fresh = api.client.get("/events", params={"after": page["next_after"]}).json()
    assert fresh["expired"] is False


def test_the_database_lets_no_event_go_that_is_not_archived(api: Api) -> None:
    job = filled(api, 10)
    with pytest.raises(sqlalchemy.exc.IntegrityError, match="only for the archive"):
        api.write("DELETE FROM job_events WHERE job_id = :j AND seq = 1", j=job)
    with pytest.raises(sqlalchemy.exc.IntegrityError, match="do not hold events"):
        api.write("UPDATE jobs SET archived_seq = 5 WHERE id = :j", j=job)
    hole = """WITH hole AS (
        INSERT INTO event_ranges (job_id, first_seq, last_seq, project_id, key, size, sha256,
        counts, last_xid) VALUES (:j, 2, 5, 'prj_default', 'k', 1, 's', '{}', 1))
        UPDATE jobs SET archived_seq = 5 WHERE id = :j"""
    with pytest.raises(sqlalchemy.exc.IntegrityError, match="do not hold events"):
        api.write(hole, j=job)


def test_a_damaged_archive_is_an_outage_and_not_a_gap(api: Api) -> None:
    """A range whose bytes are others is never shown; the page says what is wrong."""
    job = filled(api, 10)
    archive(api)
    [(key,)] = api.rows("SELECT key FROM event_ranges WHERE job_id = :j", j=job)
    whole = store_of(api).get_bytes(key, 10**6)
    store_of(api).put_bytes(key, whole[:-1] + b"x")
    answer = api.client.get(f"/jobs/{job}/events")
    assert (answer.status_code, answer.json()["code"]) == (503, "archive_damaged")
    assert "1-12" in answer.json()["message"]
    store_of(api).put_bytes(key, whole)
    assert len(api.client.get(f"/jobs/{job}/events").json()["data"]) == 12


def test_newest_events_are_read_without_those_long_before(api: Api) -> None:
    job = filled(api)
    archive(api)
    query = "SELECT key FROM event_ranges WHERE job_id = :j ORDER BY first_seq"
    store_of(api).put_bytes(api.rows(query, j=job)[0][0], b"damaged")
    path = f"/v1/fine_tuning/jobs/{job}/events"
    newest = api.client.get(path, params={"limit": 2}).json()
    assert [event["id"].rpartition("-")[2] for event in newest["data"]] == ["456", "455"]
    older = api.client.get(path, params={"limit": 100})
    assert (older.status_code, older.json()["error"]["code"]) == (503, "archive_damaged")


def test_texts_may_hold_every_character_that_ends_a_line_somewhere(api: Api) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh\ni"
    job = new_job(api)
    append(api, job, [*log(1), ("log", {"level": "info", "message": text}), *log(2)])
    fail(api, job)
    before = api.client.get(f"/jobs/{job}/events").json()["data"]
    assert text in [event["data"].get("message") for event in before]
    archive(api)
    assert api.client.get(f"/jobs/{job}/events").json()["data"] == before


def test_joined_metrics_are_series_of_single_points(api: Api) -> None:
    """The points that one event holds, here and in the archive."""
    job = new_job(api)
    points = [
        {"step": step, "loss": 1 / step, "time": f"2026-11-30T10:00:00.{step:03d}Z"}
        for step in range(1, 101)
    ]
    append(api, job, [("metrics", {**points[-1], "points": points})])
    append(api, job, [("metrics", {"step": 101, "loss": 9.0, "note": 'a\\b "c"'})])
    fail(api, job)

    def series() -> Any:
        return api.client.get(f"/jobs/{job}/metrics").json()["series"]

    found = series()
    assert list(found) == ["loss"]
    assert [p[:2] for p in found["loss"]] == [*([s, 1 / s] for s in range(1, 101)), [101, 9.0]]
    assert found["loss"][0][2] == "2026-11-30T10:00:00.001000Z"
    archive(api)
    assert json.dumps(series()) == json.dumps(found)


class _Overtaken(Store):
    """A store whose first object is written by someone else as well, who is quicker with the rest.

    So it is when two archivers are at it: one lost the lock of housekeeping with its connection.
    """

    def __init__(self, store: Store, winner: Callable[[], int]) -> None:
        super().__init__(store._settings, store.bucket)
        self._winner: Callable[[], int] | None = winner

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        done = super().put_bytes(key, data, if_absent=if_absent)
        winner, self._winner = self._winner, None
        if winner is not None:
            assert winner() > 0
        return done


def test_an_archiver_that_comes_too_late_leaves_what_the_other_noted(api: Api) -> None:
    archive(api)  # what other tests have left
    job = filled(api)
    before = everything(api, job)
    overtaken = _Overtaken(store_of(api), lambda: archive(api))
    assert archiving.archive_events(overtaken, 0.0, 60) == 0
    assert everything(api, job) == before
    keys = {k for (k,) in api.rows("SELECT key FROM event_ranges WHERE job_id = :j", j=job)}
    prefix = f"prj_default/jobs/{job}/events/"
    assert {item.key for item in store_of(api).list_objects(prefix)} == keys


def test_an_archiver_whose_job_is_deleted_meanwhile_leaves_nothing(api: Api) -> None:
    archive(api)
    job = filled(api, 90)

    def delete() -> int:
        return api.client.delete(f"/jobs/{job}").status_code

    assert archiving.archive_events(_Overtaken(store_of(api), delete), 0.0, 60) == 0
    assert list(store_of(api).list_objects(f"prj_default/jobs/{job}/events/")) == []
