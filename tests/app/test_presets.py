"""`/presets` at the door, and jobs and plans that are made from one."""

import secrets
from typing import Any

import pytest

from tests.app.resources import JOB
from tests.app.server import Api

ADAPTER = {"adapter": {"type": "lora", "r": 16, "lora_alpha": 32}}
PRESET = {**ADAPTER, "training": {"learning_rate": 0.1, "seed": 7}}


def keep(api: Api, spec: dict[str, Any], name: str = "ours") -> Any:
    return api.client.put(f"/presets/{name}", json={"spec": spec})


def test_a_preset_is_kept_replaced_and_deleted(api: Api) -> None:
    first = keep(api, PRESET).json()
    second = keep(api, ADAPTER).json()
    assert (second["spec"], second["created_at"]) == (ADAPTER, first["created_at"])
    assert second["updated_at"] > first["updated_at"]
    assert api.client.get("/presets/ours").json() == second
    keep(api, ADAPTER, "Theirs")
    page = api.client.get("/presets", params={"limit": 1}).json()
    rest = api.client.get("/presets", params={"cursor": page["next_cursor"]}).json()
    assert second in (*page["items"], *rest["items"])
    assert rest["next_cursor"] is None
    bad = api.client.get("/presets", params={"cursor": "/"})
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid_cursor")
    large = keep(api, {"labels": {"a": "x" * 64 * 1024}}).json()["errors"][0]
    assert (large["pointer"], "65536 at most" in large["message"]) == ("/spec", True)
    assert api.client.delete("/presets/ours").status_code == 204
    for method in ("GET", "DELETE"):
        answer = api.client.request(method, "/presets/ours")
        assert (answer.status_code, answer.json()["code"]) == (404, "preset_not_found")


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ({"training": {"learning_rte": 1.0}}, "/spec/training/learning_rte"),
        ({"training": {"learning_rate": -1.0}}, "/spec/training/learning_rate"),
        ({"task": {"type": "stf"}}, "/spec/task/type"),
        ({"publish": {"hub": {"token": "hf_abcdef"}}}, "/spec/publish/hub/token"),
        ({"plan_id": f"plan_{'0' * 26}"}, "/spec/plan_id"),
        ({"preset": "other"}, "/spec/preset"),
        ({}, "/spec"),
    ],
)
def test_what_no_job_could_have_is_refused(api: Api, spec: dict[str, Any], pointer: str) -> None:
    answer = keep(api, spec)
    assert answer.status_code == 422
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]


def test_of_many_wrong_fields_the_first_are_explained(api: Api) -> None:
    answer = keep(api, {f"field_{number}": number for number in range(2000)})
    errors = answer.json()["errors"]
    assert [each["pointer"] for each in errors] == [
        *(f"/spec/field_{n}" for n in range(50)),
        "/spec",
    ]
    assert errors[-1]["message"] == "and 1950 more fields are wrong"


def test_a_job_is_merged_into_its_preset_and_says_what_came_from_there(api: Api) -> None:
    keep(api, {**PRESET, "labels": {"team": "상점"}})
    own = {"preset": "ours", "training": {"seed": 8}, "adapter": {"r": 8, "lora_alpha": None}}
    answer = api.client.post("/jobs", json={**JOB, **own})
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert job["spec"] == {
        **JOB,
        "labels": {"team": "상점"},
        "training": {"learning_rate": 0.1, "seed": 8},
        "adapter": {"type": "lora", "r": 8},
    }
    [told] = [each["message"] for each in job["warnings"] if each["code"] == "preset"]
    assert told == "from preset ours: adapter.type, labels.team, training.learning_rate"
    api.client.delete("/presets/ours")
    assert api.client.get(f"/jobs/{job['id']}").json()["spec"] == job["spec"]


def test_a_whole_spec_may_come_from_a_preset_and_a_plan_as_well(api: Api) -> None:
    keep(api, JOB)
    assert api.client.post("/jobs", json={"preset": "ours"}).status_code == 201
    plan = api.client.post("/plans", json={"preset": "ours", "training": {"seed": 9}})
    assert plan.status_code == 201, plan.text
    assert plan.json()["spec"] == {**JOB, "training": {"seed": 9}}


def test_a_sweep_may_start_from_a_preset(api: Api) -> None:
    keep(api, PRESET)
    body = {"name": "s", "grid": {"adapter.r": [4, 8]}, "metric": {"name": "loss", "goal": "min"}}
    answer = api.client.post("/sweeps", json={**body, "spec": {**JOB, "preset": "ours"}})
    assert answer.status_code == 201, answer.text
    sweep = answer.json()
    assert sweep["spec"] == {**JOB, **PRESET}
    assert [run["fields"] for run in sweep["runs"]] == [{"adapter.r": 4}, {"adapter.r": 8}]
    job = api.client.get(f"/jobs/{sweep['runs'][1]['job_id']}").json()
    assert job["spec"]["adapter"] == {**ADAPTER["adapter"], "r": 8}
    [told] = [each["message"] for each in job["warnings"] if each["code"] == "preset"]
    assert told.endswith("what the sweep varies goes before it")
    for spec, pointer in (
        ({**JOB, "preset": "none"}, "/spec/preset"),
        ({**JOB, "preset": "ours", "training": {"seed": -1}}, "/spec/training/seed"),
        ({**JOB, "preset": "ours", "trainin": {}}, "/spec/trainin"),
    ):
        wrong = api.client.post("/sweeps", json={**body, "spec": spec})
        assert [each["pointer"] for each in wrong.json()["errors"]] == [pointer]


def test_what_is_wrong_is_named_with_the_preset(api: Api) -> None:
    keep(api, ADAPTER)
    for body in ({"preset": "none"}, {"preset": 5}, {**JOB, "preset": None}):
        answer = api.client.post("/jobs", json=body)
        assert answer.status_code == 422
        [problem] = answer.json()["errors"]
        assert problem["pointer"] == "/preset"
        assert "GET /presets lists them" in problem["message"]
    answer = api.client.post("/jobs", json={"preset": "ours", "adapter": {"r": 0}})
    found = {each["pointer"]: each["message"] for each in answer.json()["errors"]}
    assert found.keys() == {"/task", "/model", "/data", "/adapter/r"}
    assert "(with preset ours)" in found["/task"]
    assert "preset" not in found["/adapter/r"]
    unknown = api.client.post("/jobs", json={**JOB, "preset": "ours", "trainin": {}})
    assert [each["pointer"] for each in unknown.json()["errors"]] == ["/trainin"]


def test_the_same_key_and_body_get_the_first_answer_whatever_the_preset_is_now(api: Api) -> None:
    keep(api, ADAPTER)
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    first = api.client.post("/jobs", json={**JOB, "preset": "ours"}, headers=headers)
    assert first.status_code == 201
    api.client.delete("/presets/ours")
    again = api.client.post("/jobs", json={**JOB, "preset": "ours"}, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    other = api.client.post("/jobs", json=JOB, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")


def test_presets_are_each_projects_own(api: Api) -> None:
    keep(api, ADAPTER, "theirs")
    api.write("INSERT INTO projects (id, name) VALUES ('prj_x', 'x') ON CONFLICT DO NOTHING")
    api.write("DELETE FROM presets WHERE project_id = 'prj_x'")
    api.write("UPDATE presets SET project_id = 'prj_x' WHERE name = 'theirs'")
    assert api.client.get("/presets/theirs").status_code == 404
    assert api.client.delete("/presets/theirs").status_code == 404
    job = api.client.post("/jobs", json={**JOB, "preset": "theirs"})
    assert job.json()["errors"][0]["pointer"] == "/preset"
    with api.role("viewer") as viewer:
        assert viewer.get("/presets").status_code == 200
        assert viewer.put("/presets/ours", json={"spec": ADAPTER}).status_code == 403
