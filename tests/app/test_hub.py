"""`publish.hub` at the door: what a submission must name, what a job shows, and the second try."""

from typing import Any

import pytest

from tests.app import resources
from tests.app.resources import JOB
from tests.app.server import Api

WISH = {"repo_id": "org/model", "token": {"secret": "hub-token"}}


def submit(api: Api, **hub: Any) -> Any:
    return api.client.post("/jobs", json={**JOB, "publish": {"hub": {**WISH, **hub}}})


def test_a_secret_that_is_not_there_is_named(api: Api) -> None:
    answer = submit(api, token={"secret": "none-such"})
    assert answer.status_code == 422
    [problem] = answer.json()["errors"]
    assert problem["pointer"] == "/publish/hub/token/secret"
    assert "PUT /secrets/none-such makes it" in problem["message"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"repo_id": "model"}, "/publish/hub/repo_id"),
        ({"revision": "a" * 40}, "/publish/hub/revision"),
        ({"token": "hf_abcdef"}, "/publish/hub/token"),
        ({"strategy": "never"}, "/publish/hub/strategy"),
    ],
)
def test_a_wrong_field_is_named(api: Api, change: dict[str, Any], pointer: str) -> None:
    answer = submit(api, **change)
    assert answer.status_code == 422
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]
    assert "hf_abcdef" not in answer.text


def test_an_evaluation_has_nothing_to_push(api: Api) -> None:
    resources.pushed_job(api)  # makes the secret
    task = {"type": "evaluation", "of": {"type": "sft"}}
    answer = api.client.post("/jobs", json={**JOB, "task": task, "publish": {"hub": WISH}})
    assert [each["pointer"] for each in answer.json()["errors"]] == ["/publish/hub"]


def test_a_job_shows_where_it_is_pushed_and_a_retry_tells_of_itself(api: Api) -> None:
    job_id = resources.pushed_job(api)["job_id"]
    ref = api.client.get(f"/jobs/{job_id}").json()["external_refs"]["hub"]
    assert ref == {
        "repo_id": "org/model",
        "revision": "main",
        "url": "https://huggingface.co/org/model/tree/main",
        "state": "failed",
        "message": "the hub answered 403",
        "kind": "model",
        "step": None,
        "commit": None,
        "pushed_at": None,
    }
    for _ in range(2):  # doing it again changes nothing
        answer = api.client.post(f"/jobs/{job_id}/hub/retry")
        assert answer.status_code == 202
        hub = answer.json()["external_refs"]["hub"]
        assert (hub["state"], hub["message"]) == ("pending", None)
    page = api.client.get(f"/jobs/{job_id}/events", params={"types": "hub"}).json()
    told = {"repo_id": "org/model", "revision": "main", "state": "pending"}
    assert page["data"][0]["data"] == told


def test_where_nothing_is_to_be_pushed_a_retry_says_why(api: Api) -> None:
    other = resources.job(api)["job_id"]
    answer = api.client.post(f"/jobs/{other}/hub/retry")
    assert (answer.status_code, answer.json()["code"]) == (409, "no_hub")
    job_id = submit(api).json()["id"]
    answer = api.client.post(f"/jobs/{job_id}/hub/retry")
    assert (answer.status_code, answer.json()["code"]) == (409, "nothing_to_push")
    assert "has nothing to push to the hub so far" in answer.json()["message"]
    api.write(
        "INSERT INTO hub_pushes (job_id, project_id, kind, prefix, manifest_sha256, state, commit)"
        " VALUES (:id, 'prj_default', 'model', 'p/', 'f', 'pushed', 'abc')",
        id=job_id,
    )
    answer = api.client.post(f"/jobs/{job_id}/hub/retry")
    assert "it is on the hub already, in commit abc" in answer.json()["message"]
    missing = f"job_{'0' * 26}"
    assert api.client.post(f"/jobs/{missing}/hub/retry").status_code == 404
