"""Logs as text and metrics as series."""

import csv
import io
import json
from typing import Any

import pytest

from app.ids import new_id
from tests.app.server import Api
from tests.app.streams import append, log, new_job


@pytest.fixture
def job(api: Api) -> str:
    return new_job(api)


def attempt_of(api: Api, job: str, number: int) -> str:
    attempt = new_id("att")
    api.write(
        "INSERT INTO attempts (id, project_id, job_id, number, target, nonce, outcome, finished_at)"
        " VALUES (:id, 'prj_default', :job, :number, 'local', 'n', 'failed', now())",
        id=attempt,
        job=job,
        number=number,
    )
    return attempt


def write(api: Api, job: str, attempt: str, *events: tuple[str, dict[str, Any]]) -> None:
    api.write(
        """
        WITH job AS (UPDATE jobs SET last_seq = last_seq + :count WHERE id = :job
            RETURNING project_id, last_seq - :count AS base)
        INSERT INTO job_events (job_id, seq, project_id, attempt_id, type, data)
        SELECT :job, base + ord, project_id, :attempt, e.value ->> 0, e.value -> 1
        FROM job, jsonb_array_elements(CAST(:events AS jsonb)) WITH ORDINALITY AS e(value, ord)
        """,
        job=job,
        attempt=attempt,
        count=len(events),
        events=json.dumps(events),
    )


def messages(text: str) -> list[str]:
    return [line.split("line ")[1] for line in text.splitlines()]


def test_logs_are_lines_of_text(api: Api, job: str) -> None:
    append(api, job, [*log(1), ("metrics", {"step": 1, "loss": 1.0}), *log(2)])
    answer = api.client.get(f"/jobs/{job}/logs")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-next-after"] == "3"
    time, level, message = answer.text.splitlines()[0].split(maxsplit=2)
    assert (level, message) == ("info", "line 1")
    assert time.endswith("Z")
    assert messages(answer.text) == ["1", "2"]


def test_logs_after_and_tail(api: Api, job: str) -> None:
    append(api, job, log(*range(1, 2501)))  # three pages
    path = f"/jobs/{job}/logs"
    assert len(api.client.get(path).text.splitlines()) == 2500
    assert messages(api.client.get(path, params={"after": 2498}).text) == ["2499", "2500"]
    assert messages(api.client.get(path, params={"tail": 3}).text) == ["2498", "2499", "2500"]
    both = api.client.get(path, params={"tail": 3, "after": 2499})
    assert messages(both.text) == ["2500"]
    assert api.client.get(path, params={"after": 2500, "tail": 5}).text == ""
    assert api.client.get(path, params={"after": 2501}).status_code == 400


def test_logs_of_one_attempt_and_one_rank(api: Api, job: str) -> None:
    first, second = attempt_of(api, job, 1), attempt_of(api, job, 2)
    write(api, job, first, ("log", {"level": "info", "message": "line 1"}))
    write(api, job, second, ("log", {"level": "info", "message": "line 2", "rank": 0}))
    write(api, job, second, ("log", {"level": "warning", "message": "line 3", "rank": 1}))
    path = f"/jobs/{job}/logs"
    assert messages(api.client.get(path, params={"attempt": 2}).text) == ["2", "3"]
    assert messages(api.client.get(path, params={"rank": 0}).text) == ["1", "2"]
    ranked = api.client.get(path, params={"attempt": 2, "rank": 1}).text
    assert " warning [rank 1] line 3\n" in ranked
    missing = api.client.get(path, params={"attempt": 3})
    assert (missing.status_code, missing.json()["code"]) == (404, "attempt_not_found")


def test_logs_are_saved_as_a_file_when_asked(api: Api, job: str) -> None:
    append(api, job, log(1))
    answer = api.client.get(f"/jobs/{job}/logs", params={"download": 1})
    assert answer.headers["content-disposition"].startswith(f'attachment; filename="{job}.log"')


def series(api: Api, job: str, **query: object) -> dict[str, list[list[Any]]]:
    answer = api.client.get(f"/jobs/{job}/metrics", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, list[list[Any]]] = answer.json()["series"]
    return found


def test_series_by_name(api: Api, job: str) -> None:
    append(
        api,
        job,
        [
            ("metrics", {"step": 1, "epoch": 0.5, "loss": 2.5, "learning_rate": 1e-05}),
            ("metrics", {"step": 2, "epoch": 1.0, "loss": 2.25, "eval_loss": 3}),
        ],
    )
    found = series(api, job)
    assert {name: [p[:2] for p in points] for name, points in found.items()} == {
        "loss": [[1, 2.5], [2, 2.25]],
        "learning_rate": [[1, 1e-05]],
        "eval_loss": [[2, 3.0]],
    }
    assert found["loss"][0][2].endswith("Z")
    assert list(series(api, job, names="loss,epoch")) == ["epoch", "loss"]


def test_a_step_repeated_after_a_restart_counts_once(api: Api, job: str) -> None:
    events = [("metrics", {"step": step, "loss": loss}) for step, loss in ((1, 3), (2, 2), (2, 5))]
    append(api, job, events)
    assert [p[:2] for p in series(api, job)["loss"]] == [[1, 3], [2, 5]]


def test_long_series_keep_ends_and_extremes(api: Api, job: str) -> None:
    values = [1.0] * 1000
    values[123], values[777] = 9.0, -9.0
    append(api, job, [("metrics", {"step": i, "loss": v}) for i, v in enumerate(values)])
    points = [p[:2] for p in series(api, job, max_points=40)["loss"]]
    assert len(points) <= 40
    assert [points[0], points[-1]] == [[0, 1.0], [999, 1.0]]
    assert [123, 9.0] in points
    assert [777, -9.0] in points
    assert points == sorted(points)
    assert len(series(api, job, max_points=1000)["loss"]) == 1000


def test_series_as_csv(api: Api, job: str) -> None:
    append(api, job, [("metrics", {"step": 1, "loss": 0.1}), ("metrics", {"step": 2, "loss": 3})])
    by_header = api.client.get(f"/jobs/{job}/metrics", headers={"Accept": "text/csv"})
    by_query = api.client.get(f"/jobs/{job}/metrics", params={"format": "csv"})
    assert by_header.headers["content-type"] == "text/csv; charset=utf-8"
    assert by_header.text == by_query.text
    rows = list(csv.reader(io.StringIO(by_query.text)))
    assert [row[:3] for row in rows] == [
        ["metric", "step", "value"],
        ["loss", "1", "0.1"],
        ["loss", "2", "3.0"],
    ]
    wins = api.client.get(
        f"/jobs/{job}/metrics", params={"format": "json"}, headers={"Accept": "text/csv"}
    )
    assert list(wins.json()) == ["series"]


def test_unknown_jobs_have_neither(api: Api) -> None:
    for kind in ("logs", "metrics"):
        answer = api.client.get(f"/jobs/{new_id('job')}/{kind}")
        assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
