"""`/webhooks` at the door: made, changed, tested, and each project's own."""

from typing import Any

import pytest

from tests.app import resources
from tests.app.resources import JOB
from tests.app.server import Api

URL = "https://hooks.example.com/polar"


def make(api: Api, **fields: Any) -> dict[str, Any]:
    resources.webhook(api)  # clears the table
    answer = api.client.post("/webhooks", json={"url": URL, **fields})
    assert answer.status_code == 201, answer.text
    assert answer.headers["Location"] == f"/webhooks/{answer.json()['id']}"
    return dict(answer.json())


def deliveries(api: Api, webhook_id: str, **query: Any) -> list[dict[str, Any]]:
    answer = api.client.get(f"/webhooks/{webhook_id}/deliveries", params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def test_the_secret_is_shown_once_and_kept_encrypted(api: Api) -> None:
    made = make(api)
    secret = made["secret"]
    assert secret.startswith("whsec_")
    assert len(secret) > 40
    [(kept,)] = api.rows("SELECT ciphertext FROM webhooks WHERE id = :id", id=made["id"])
    assert secret.encode() not in bytes(kept)
    shown = api.client.get(f"/webhooks/{made['id']}")
    assert "secret" not in shown.json()
    other = api.client.post(f"/webhooks/{made['id']}/secret").json()["secret"]
    assert other != secret
    assert secret not in api.client.get("/webhooks").text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:8010/", "not a public address"),
        ("http://2130706433/", "not a public address"),  # another spelling of it
        ("https://localhost/", "not a public address"),
        ("http://[::ffff:10.0.0.1]/", "not a public address"),
        ("http://169.254.169.254/latest/meta-data", "not a public address"),
        ("https://user:pass@hooks.example.com/", "leave user and password out"),
        ("https://hooks.example.com/#part", "behind #"),
        ("https:///path", "a host"),
        ("https://hooks.example.com:0/", "no port"),
        ("ftp://hooks.example.com/", "of the form ^https?://"),
    ],
)
def test_an_address_that_may_not_be_called_is_refused(api: Api, url: str, said: str) -> None:
    made = make(api)
    for answer in (
        api.client.post("/webhooks", json={"url": url}),
        api.client.patch(f"/webhooks/{made['id']}", json={"url": url}),
    ):
        assert answer.status_code == 422
        [problem] = answer.json()["errors"]
        assert problem["pointer"] == "/url"
        assert said in problem["message"]


def test_what_is_changed_is_changed_and_the_rest_stays(api: Api) -> None:
    made = make(api, events=["job.failed"], description="ours")
    changed = api.client.patch(f"/webhooks/{made['id']}", json={"active": False}).json()
    assert (changed["active"], changed["events"], changed["url"], changed["description"]) == (
        *(False, ["job.failed"], URL),
        "ours",
    )
    for path in ("test", f"deliveries/dlv_{'0' * 26}/redeliver"):
        answer = api.client.post(f"/webhooks/{made['id']}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (409, "webhook_inactive")
    assert api.client.delete(f"/webhooks/{made['id']}").status_code == 204
    assert api.client.get(f"/webhooks/{made['id']}").status_code == 404


def test_a_delivery_is_written_with_the_change_that_it_tells_of(api: Api) -> None:
    made = make(api, events=["job.cancelled"])
    other = api.client.post("/webhooks", json={"url": URL, "events": ["job.failed"]}).json()
    job_id = api.client.post("/jobs", json={**JOB, "labels": {"team": "상점"}}).json()["id"]
    assert deliveries(api, made["id"]) == []
    api.client.post(f"/jobs/{job_id}/cancel")
    [told] = deliveries(api, made["id"])
    assert deliveries(api, other["id"]) == []
    payload = told["payload"]
    assert (told["event"], told["status"], told["attempts"]) == ("job.cancelled", "pending", 0)
    assert (payload["id"], payload["type"]) == (told["id"], "job.cancelled")
    assert payload["links"] == {"self": f"/jobs/{job_id}"}
    job = payload["data"]["job"]
    assert (job["id"], job["labels"], job["status"]) == (job_id, {"team": "상점"}, "cancelled")
    assert "spec" not in job
    assert api.client.get(f"/webhooks/{made['id']}").json()["pending"] == 1


def test_deliveries_come_in_pages_and_by_status(api: Api) -> None:
    made = make(api)
    ids = [api.client.post(f"/webhooks/{made['id']}/test").json()["id"] for _ in range(3)]
    api.write("UPDATE webhook_deliveries SET status = 'failed' WHERE id = :id", id=ids[1])
    assert [each["id"] for each in deliveries(api, made["id"], status="failed")] == [ids[1]]
    path = f"/webhooks/{made['id']}/deliveries"
    first = api.client.get(path, params={"limit": 2}).json()
    rest = api.client.get(path, params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [each["id"] for each in (*first["items"], *rest["items"])] == sorted(ids, reverse=True)
    assert rest["next_cursor"] is None
    bad = api.client.get(path, params={"cursor": "x"})
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid_cursor")
    again = api.client.post(f"{path}/{ids[1]}/redeliver")
    assert (again.status_code, again.json()["status"]) == (202, "pending")
    assert api.client.post(f"{path}/dlv_{'0' * 26}/redeliver").status_code == 404


def test_a_project_has_so_many_and_no_more(api: Api) -> None:
    make(api)
    for _ in range(18):
        assert api.client.post("/webhooks", json={"url": URL}).status_code == 201
    answer = api.client.post("/webhooks", json={"url": URL})
    assert (answer.status_code, answer.json()["code"]) == (409, "too_many_webhooks")
    resources.webhook(api)


def test_webhooks_are_for_operators_of_their_own_project(api: Api) -> None:
    made = resources.webhook(api)
    here = f"/webhooks/{made['webhook_id']}"
    with api.role("submitter") as submitter:
        assert submitter.get("/webhooks").status_code == 403
    with api.role("operator") as operator:
        assert operator.get(here).status_code == 200
    api.write("INSERT INTO projects (id, name) VALUES ('prj_x', 'x') ON CONFLICT DO NOTHING")
    api.write("UPDATE webhooks SET project_id = 'prj_x' WHERE id = :id", id=made["webhook_id"])
    delivery = f"{here}/deliveries/{made['delivery_id']}/redeliver"
    calls = [
        *(("GET", here), ("PATCH", here), ("DELETE", here), ("GET", f"{here}/deliveries")),
        *(("POST", f"{here}/test"), ("POST", f"{here}/secret"), ("POST", delivery)),
    ]
    for method, path in calls:
        json = {"active": False} if method == "PATCH" else None
        assert api.client.request(method, path, json=json).status_code == 404
    job_id = resources.finished_job(api)["job_id"]
    told = "SELECT count(*) FROM webhook_deliveries WHERE body LIKE '%' || :id || '%'"
    assert api.rows(told, id=job_id) == [(0,)]
    api.write("DELETE FROM webhooks WHERE project_id = 'prj_x'")
