"""`/plans` at the door: what is refused, what is repeated, and a plan that nobody has made."""

from typing import Any

import pytest

from app.ids import new_id
from tests.app.resources import JOB
from tests.app.server import Api


def asked(api: Api, **changes: Any) -> Any:
    return api.client.post("/plans", json={**JOB, **changes})


def test_a_plan_is_checked_as_a_job_is(api: Api) -> None:
    """The same problems, with the same pointers."""
    wrong = {**JOB, "data": {"train": [{"source": "dataset", "path": "ds_none"}]}}
    as_job, as_plan = (api.client.post(path, json=wrong) for path in ("/jobs", "/plans"))
    assert as_plan.status_code == 422
    assert as_plan.json()["errors"] == as_job.json()["errors"]
    shown = api.client.post("/plans/preview", json={"spec": wrong})
    assert [each["pointer"] for each in shown.json()["errors"]] == ["/data/train/0/path"]


def test_a_repeated_call_gets_the_same_plan_and_the_queue_one_hint(api: Api) -> None:
    data = {"train": [{"source": "hub", "path": "org/repeated"}]}
    first = asked(api, data=data, name="one")
    again = asked(api, data=data, name="two", priority=4)  # which change nothing of it
    plan = first.json()
    assert first.status_code == again.status_code == 201
    assert first.headers["location"] == f"/plans/{plan['id']}"
    assert again.json()["id"] == plan["id"]
    assert (plan["status"], plan["exact"], plan["figures"]) == ("waiting", False, None)
    assert plan["waiting_for"] == "no prepare worker online"
    assert plan["resolved"]["training"]["optim"] == "adamw_torch_fused"
    hints = api.rows(
        "SELECT queue FROM outbox WHERE handler = 'plan' AND args ->> 0 = :id", id=plan["id"]
    )
    assert hints == [("prepare",)]
    assert asked(api, data=data, training={"max_steps": 5}).json()["id"] != plan["id"]


def test_a_plan_of_another_project_is_not_there(api: Api) -> None:
    plan_id = asked(api).json()["id"]
    api.write("INSERT INTO projects (id, name) VALUES ('prj_plans', 'plans')")
    api.write("UPDATE plans SET project_id = 'prj_plans' WHERE id = :id", id=plan_id)
    assert api.client.get(f"/plans/{plan_id}").status_code == 404
    pinned = api.client.post("/jobs", json={**JOB, "plan_id": plan_id})
    assert (pinned.status_code, pinned.json()["code"]) == (404, "plan_not_found")


def test_a_job_may_be_pinned_before_its_plan_is_exact_and_its_clone_is_free(api: Api) -> None:
    data = {"train": [{"source": "hub", "path": "org/pinned"}]}
    plan_id = asked(api, data=data).json()["id"]
    job = api.client.post("/jobs", json={**JOB, "data": data, "plan_id": plan_id})
    assert job.status_code == 201, job.text
    assert job.json()["spec"]["plan_id"] == plan_id
    waits = api.client.get(f"/jobs/{job.json()['id']}").json()["waiting_for"]
    assert waits == "its plan, which is being made"
    other = api.client.post("/jobs", json={**JOB, "plan_id": plan_id})
    assert (other.status_code, other.json()["code"]) == (409, "plan_outdated")
    assert [each["pointer"] for each in other.json()["errors"]] == ["/data/train"]
    clone = api.client.post(f"/jobs/{job.json()['id']}/clone")
    assert clone.status_code == 201
    assert "plan_id" not in clone.json()["spec"]


def test_a_repeated_submission_is_answered_after_its_plan_is_over(api: Api) -> None:
    data = {"train": [{"source": "hub", "path": "org/over"}]}
    spec = {**JOB, "data": data, "plan_id": asked(api, data=data).json()["id"]}

    def sent(key: str) -> Any:
        return api.client.post("/jobs", json=spec, headers={"Idempotency-Key": key})

    first = sent("of-a-plan")
    api.write("UPDATE plans SET expires_at = now() WHERE id = :id", id=spec["plan_id"])
    again = sent("of-a-plan")
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert sent("another-of-a-plan").json()["code"] == "plan_not_found"


@pytest.mark.parametrize("samples", [0, 51])
def test_a_preview_has_a_bound(api: Api, samples: int) -> None:
    answer = api.client.post("/plans/preview", json={"spec": JOB, "samples": samples})
    assert answer.status_code == 422
    assert [each["pointer"] for each in answer.json()["errors"]] == ["/samples"]


def test_a_preview_that_nobody_has_read_says_so(api: Api) -> None:
    answer = api.client.post("/plans/preview", json={"spec": JOB, "samples": 3})
    assert answer.status_code == 200
    assert answer.json() == {
        "samples": None,
        "warnings": [],
        "waiting_for": "no prepare worker online",
    }


def test_a_plan_is_not_pinned_to_a_plan(api: Api) -> None:
    answer = asked(api, plan_id=new_id("plan"))
    assert answer.status_code == 422
    assert [each["pointer"] for each in answer.json()["errors"]] == ["/plan_id"]
