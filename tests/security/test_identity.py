"""Who a caller is, their key alone says; what the service is, its store's keys say."""

from collections.abc import Iterator

import httpx
import pytest

from tests.app import resources
from tests.app.server import Api, running

# What gateways set, and what somebody sets who would like to be let in without one.
CLAIMS = {
    "X-User-ID": "1",
    "X-User-Role": "admin",
    "X-Forwarded-User": "root",
    "X-Project-ID": "prj_other",
    "X-Remote-User": "admin",
    "X-Original-URL": "/healthz",
    "X-HTTP-Method-Override": "GET",
}


def test_b36_headers_of_a_gateway_prove_nothing(api: Api) -> None:
    with httpx.Client(base_url=api.url, headers=CLAIMS) as nobody:
        assert nobody.get("/jobs").status_code == 401
        assert nobody.delete("/api-keys/x").status_code == 401
    with api.role("viewer") as viewer:
        assert viewer.post("/jobs", json=resources.JOB, headers=CLAIMS).status_code == 403


def test_b36_a_key_sees_its_own_project_whatever_else_is_said(api: Api) -> None:
    job_id = resources.job(api)["job_id"]
    assert api.client.get(f"/jobs/{job_id}", headers=CLAIMS).status_code == 200
    listed = api.client.get("/jobs", headers=CLAIMS).json()["items"]
    assert job_id in [job["id"] for job in listed]


@pytest.fixture(scope="module")
def refused(api: Api) -> Iterator[Api]:
    """An API whose keys the store does not take any more."""
    with running(api.environment | {"S3_SECRET_KEY": "expired-and-refused"}, api.key) as started:
        yield started


def test_b9_refused_credentials_of_the_store_are_named(refused: Api) -> None:
    answer = httpx.get(f"{refused.url}/readyz")
    assert answer.status_code == 503
    assert answer.json()["missing"] == ["store"]


def test_b9_nothing_is_taken_in_that_could_not_be_kept(refused: Api) -> None:
    before = refused.rows("SELECT count(*) FROM datasets")
    query = {"name": "lost", "file_name": "rows.jsonl"}
    answer = refused.client.post("/datasets", params=query, content=b'{"text": "a"}\n')
    assert answer.status_code == 503
    assert answer.json()["code"] == "store_unavailable"
    assert "retry-after" in answer.headers
    assert refused.rows("SELECT count(*) FROM datasets") == before
