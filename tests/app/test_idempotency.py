"""`POST /jobs/{id}/retry` and `/clone` with an Idempotency-Key: the same call makes one job."""

import concurrent.futures
import secrets
from typing import Any

import httpx
import pytest

from tests.app import resources
from tests.app.server import Api

CALLS = ("retry", "clone")
OTHER_BODY: dict[str, dict[str, Any]] = {
    "retry": {"from_scratch": True},
    "clone": {"overrides": {"priority": 0}},
}


def call(api: Api, job: str, what: str, key: str, body: Any = None) -> httpx.Response:
    return api.client.post(f"/jobs/{job}/{what}", json=body, headers={"Idempotency-Key": key})


def finished(api: Api) -> str:
    return resources.finished_job(api)["job_id"]


def made_of(api: Api, parent: str) -> int:
    return len(api.rows("SELECT 1 FROM jobs WHERE :p IN (retry_of, clone_of)", p=parent))


@pytest.mark.parametrize("what", CALLS)
def test_the_same_call_again_gets_the_first_answer(api: Api, what: str) -> None:
    parent, key = finished(api), secrets.token_hex(8)
    first, again = (call(api, parent, what, key) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201), again.text
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    assert call(api, parent, what, key, {}).json() == first.json()  # no body means the same
    assert made_of(api, parent) == 1


@pytest.mark.parametrize("what", CALLS)
def test_the_key_of_another_request_is_refused(api: Api, what: str) -> None:
    """Another body, parent or call, though the job that came out would be the same."""
    parent, sibling, key = finished(api), finished(api), secrets.token_hex(8)
    assert call(api, parent, what, key).status_code == 201
    other = CALLS[1 - CALLS.index(what)]
    answers = [
        call(api, parent, what, key, OTHER_BODY[what]),
        call(api, sibling, what, key),
        call(api, parent, other, key),
        api.client.post("/jobs", json=resources.JOB, headers={"Idempotency-Key": key}),
    ]
    found = [(answer.status_code, answer.json()["code"]) for answer in answers]
    assert found == [(409, "idempotency_mismatch")] * 4
    assert (made_of(api, parent), made_of(api, sibling)) == (1, 0)


@pytest.mark.parametrize("what", CALLS)
def test_two_at_the_same_moment_make_one_job(api: Api, what: str) -> None:
    parent, key = finished(api), secrets.token_hex(8)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: call(api, parent, what, key), range(8)))
    made = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    refused = {answer.json()["code"] for answer in answers if answer.status_code != 201}
    assert len(made) == made_of(api, parent) == 1
    assert refused <= {"in_flight"}
    assert call(api, parent, what, key).json()["id"] in made


@pytest.mark.parametrize("what", CALLS)
def test_the_answer_outlives_what_it_was_made_from(api: Api, what: str) -> None:
    """The parent's checkpoints come and go, and it is deleted: the job was made all the same."""
    parent, key = finished(api), secrets.token_hex(8)
    first = call(api, parent, what, key).json()
    api.write(
        "INSERT INTO attempts (id, project_id, job_id, number, target, nonce, outcome, finished_at,"
        " released_at) VALUES (:a, 'prj_default', :p, 1, 'local', 'n', 'failed', now(), now())",
        a=f"att{parent[3:]}",
        p=parent,
    )
    api.write(
        "INSERT INTO checkpoints (id, project_id, job_id, attempt_id, step, prefix,"
        " manifest_sha256, size) VALUES (:c, 'prj_default', :p, :a, 4, 'x/y/', 'h', 1)",
        c=f"ckp{parent[3:]}",
        a=f"att{parent[3:]}",
        p=parent,
    )
    assert call(api, parent, what, key).json() == first
    api.write("DELETE FROM checkpoints WHERE job_id = :p", p=parent)
    assert api.client.delete(f"/jobs/{parent}").status_code == 204
    assert call(api, parent, what, key).json() == first
    assert call(api, parent, what, secrets.token_hex(8)).status_code == 404
