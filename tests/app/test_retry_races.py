"""Retries and deletions of the same job at the same time, over HTTP."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import text

from app.ids import new_id
from tests.app.resources import JOB
from tests.app.server import Api
from tests.app.stored import store_of
from tests.services import wait_until

_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = :d"


@pytest.fixture
def parent(api: Api) -> str:
    return failed_job(api)


def failed_job(api: Api) -> str:
    """Make a failed job with a whole checkpoint in the store."""
    job, attempt = str(api.client.post("/jobs", json=JOB).json()["id"]), new_id("att")
    prefix = prefix_of(job)
    for name in ("weights", "manifest.json"):
        store_of(api).put_bytes(prefix + name, b"12345")
    api.write(
        "INSERT INTO attempts (id, project_id, job_id, number, target, nonce, outcome, finished_at,"
        " released_at) VALUES (:a, 'prj_default', :j, 1, 'local', 'n', 'failed', now(), now())",
        a=attempt,
        j=job,
    )
    api.write(
        "INSERT INTO checkpoints (id, project_id, job_id, attempt_id, step, prefix,"
        " manifest_sha256, size) VALUES (:c, 'prj_default', :j, :a, 4, :prefix, 'x', 10)",
        c=new_id("ckp"),
        j=job,
        a=attempt,
        prefix=prefix,
    )
    api.write(
        "UPDATE jobs SET status = 'failed', reason = 'killed', finished_at = now() WHERE id = :j",
        j=job,
    )
    return job


def prefix_of(job: str) -> str:
    return f"prj_default/jobs/{job}/att/checkpoints/step-00000004/"


@contextmanager
def nothing_submitted(api: Api) -> Iterator[None]:
    """Hold every submission at its last statement, which writes a preparation."""
    with api.engine.connect() as connection:
        connection.execute(text("LOCK TABLE preparations IN ACCESS EXCLUSIVE MODE"))
        yield


def waiting(api: Api) -> int:
    [(count,)] = api.rows(_WAITING, d=api.engine.url.database)
    return int(count)


def check(api: Api, parent: str, retried: httpx.Response, deleted: httpx.Response) -> None:
    """A retry that names a checkpoint has it, and its parent with it."""
    start = retried.json().get("start_from")
    if start is None:  # the job was gone, or its checkpoints were on their way out
        assert retried.status_code in (201, 404), retried.text
        assert deleted.status_code == 204, deleted.text
        return
    assert start == {"job_id": parent, "step": 4, "prefix": prefix_of(parent)}
    assert deleted.status_code == 409, deleted.text
    assert deleted.json()["code"] == "in_use"
    assert store_of(api).head(f"{prefix_of(parent)}manifest.json") == 5
    assert api.client.get(f"/jobs/{parent}").status_code == 200


def test_b26_a_checkpoint_is_never_deleted_under_a_retry(api: Api, parent: str) -> None:
    """The deletion comes while the retry has chosen its checkpoint and has not yet been written."""
    with ThreadPoolExecutor(2) as pool:
        with nothing_submitted(api):
            retried = pool.submit(api.client.post, f"/jobs/{parent}/retry")
            wait_until(lambda: waiting(api) == 1)
            deleted: Future[httpx.Response] = pool.submit(api.client.delete, f"/jobs/{parent}")
            wait_until(lambda: waiting(api) == 2 or deleted.done())
        answer = retried.result()
        assert answer.status_code == 201, answer.text
        assert answer.json()["start_from"] is not None
        check(api, parent, answer, deleted.result())


def test_b26_retries_and_deletions_at_any_moment(api: Api) -> None:
    dice = random.Random(7)  # noqa: S311 - times
    with ThreadPoolExecutor(1) as pool:
        for _ in range(8):
            parent, head_start = failed_job(api), dice.uniform(-0.02, 0.02)
            deleted = pool.submit(_delete, api, parent, max(0.0, head_start))
            time.sleep(max(0.0, -head_start))
            retried = api.client.post(f"/jobs/{parent}/retry")
            check(api, parent, retried, deleted.result())


def _delete(api: Api, job: str, pause: float) -> httpx.Response:
    time.sleep(pause)
    return api.client.delete(f"/jobs/{job}")
