"""`/sweeps` and `/compare` at the door: everything is checked before anything is there."""

import json
import secrets
from typing import Any

import pytest

from tests.app import resources
from tests.app.resources import JOB
from tests.app.server import Api

METRIC = {"name": "eval_loss", "goal": "min"}
RATES = {"training.learning_rate": [0.1, 0.2], "adapter.r": [4, 8]}
LORA = {**JOB, "adapter": {"type": "lora"}, "labels": {"team": "상점"}}


def start(api: Api, *, key: str | None = None, **changes: Any) -> Any:
    body = {"name": "s", "spec": LORA, "grid": RATES, "metric": METRIC, **changes}
    body = {name: value for name, value in body.items() if value is not None}
    return api.client.post("/sweeps", json=body, headers={"Idempotency-Key": key} if key else {})


def counts(api: Api) -> list[tuple[Any, ...]]:
    return api.rows("SELECT (SELECT count(*) FROM sweeps), (SELECT count(*) FROM jobs)")


def test_every_combination_is_a_job_that_differs_in_these_fields_alone(api: Api) -> None:
    answer = start(api, name="rates")
    assert answer.status_code == 201, answer.text
    sweep = answer.json()
    assert answer.headers["Location"] == f"/sweeps/{sweep['id']}"
    assert (sweep["status"], sweep["counts"], sweep["best"]) == ("running", {"queued": 4}, None)
    assert [(run["number"], run["name"], run["fields"]) for run in sweep["runs"]] == [
        (1, "rates-1", {"training.learning_rate": 0.1, "adapter.r": 4}),
        (2, "rates-2", {"training.learning_rate": 0.1, "adapter.r": 8}),
        (3, "rates-3", {"training.learning_rate": 0.2, "adapter.r": 4}),
        (4, "rates-4", {"training.learning_rate": 0.2, "adapter.r": 8}),
    ]
    listed = api.client.get("/jobs", params={"sweep": sweep["id"]}).json()["items"]
    assert {each["id"] for each in listed} == {run["job_id"] for run in sweep["runs"]}
    assert {each["sweep_id"] for each in listed} == {sweep["id"]}
    job = api.client.get(f"/jobs/{sweep['runs'][3]['job_id']}").json()
    assert (job["sweep_id"], job["labels"]) == (sweep["id"], {"team": "상점"})
    assert job["resolved"]["training"]["learning_rate"] == 0.2
    assert (
        job["resolved"]["publish"]["registry"] is False
    )  # only the best one's model is registered
    assert "publish" not in job["spec"]
    cancelled = api.client.post(f"/jobs/{job['id']}/cancel")
    assert cancelled.status_code == 202, cancelled.text
    for made in ("clone", "retry"):  # no run of the sweep: it registers what it makes
        copy = api.client.post(f"/jobs/{job['id']}/{made}", json={}).json()
        assert (copy["sweep_id"], copy["resolved"]["publish"]["registry"]) == (None, True)
    hints = "SELECT count(*) FROM outbox WHERE args ->> 0 = ANY(:ids)"
    assert api.rows(hints, ids=[run["job_id"] for run in sweep["runs"]]) == [(4,)]


def test_runs_one_by_one_register_as_they_say_themselves(api: Api) -> None:
    runs = [{"name": "own"}, {"adapter": None, "training": {"seed": 7}}]
    sweep = start(api, grid=None, runs=runs, register_best=False).json()
    assert [run["name"] for run in sweep["runs"]] == ["own", "s-2"]
    first, second = (api.client.get(f"/jobs/{run['job_id']}").json() for run in sweep["runs"])
    assert (second["resolved"]["adapter"], second["resolved"]["training"]["seed"]) == (None, 7)
    assert first["resolved"]["publish"]["registry"] is True


@pytest.mark.parametrize(
    ("changes", "pointer", "said"),
    [
        ({"grid": {"training.learning_rte": [1.0]}}, "/grid/training.learning_rte/0", "rate"),
        ({"grid": {"adapter.r": [8, 0]}}, "/grid/adapter.r/1", "run 2 (adapter.r = 0)"),
        ({"grid": {"adapter": [{"type": "lora", "r": 0}]}}, "/grid/adapter/0/r", "run 1"),
        ({"grid": {"labels.team.x": [1]}}, "/grid/labels.team.x", "no place"),
        (
            {
                "spec": {**LORA, "adapter": {"type": "lora", "target_modules": ["q_proj"]}},
                "grid": {"adapter.target_modules.0.x": [1]},
            },
            *("/grid/adapter.target_modules.0.x", "0 holds no fields"),
        ),
        ({"grid": {"adapter": [None], "adapter.r": [1]}}, "/grid/adapter.r", "within adapter"),
        (
            {"grid": {"adapter.r": [8, 8]}},
            "/spec",
            "run 2 (adapter.r = 8): it is the same as run 1",
        ),
        ({"grid": {"training.seed": list(range(101))}}, "/grid", "101 runs"),
        (
            {"grid": {"task.chat_template": ["x" * 500_000], "training.seed": list(range(99))}},
            *("/spec", "of the first 68 runs have 34,0"),  # 67 of 500 kB are within 32 MiB
        ),
        ({"grid": {"adapter.r": []}}, "/grid/adapter.r", "1 items or more"),
        ({"grid": None}, "", "either `grid` or `runs`"),
        ({"runs": [{}]}, "", "either `grid` or `runs`"),
        (
            {"grid": None, "runs": [{}, {"training": {"seed": -1}}]},
            *("/runs/1/training/seed", "run 2"),
        ),
        (
            {"grid": None, "runs": [{}, {"model": {"source": "registry", "name_or_path": "no"}}]},
            *("/runs/1/model/name_or_path", "there is no model no"),
        ),
        ({"grid": None, "runs": [{}, {}]}, "/runs/1", "the same as run 1"),
        ({"spec": {**LORA, "plan_id": f"plan_{'0' * 26}"}}, "/spec/plan_id", "leave it out"),
        ({"grid": {"plan_id": [f"plan_{'0' * 26}"]}}, "/grid/plan_id/0", "leave it out"),
        (
            {"grid": None, "runs": [{}, {"plan_id": f"plan_{'0' * 26}"}]},
            *("/runs/1/plan_id", "run 2: leave it out"),
        ),
        ({"spec": {**LORA, "task": {"type": "stf"}}}, "/spec/task/type", "sft"),
        ({"spec": {**LORA, "nope": 1}}, "/spec/nope", "no field `nope`"),
        ({"spec": 5}, "/spec", "must be an object"),
        ({"metric": {"name": "eval_loss", "goal": "least"}}, "/metric/goal", "min"),
    ],
)
def test_what_cannot_work_names_the_run_and_leaves_nothing(
    api: Api, changes: dict[str, Any], pointer: str, said: str
) -> None:
    before = counts(api)
    answer = start(api, **changes)
    assert answer.status_code == 422, answer.text
    [problem] = answer.json()["errors"]
    assert (problem["pointer"], said in problem["message"]) == (pointer, True), problem
    assert counts(api) == before


def test_two_runs_do_not_push_to_the_same_place(api: Api) -> None:
    resources.pushed_job(api)  # makes the secret
    hub = {"repo_id": "org/model", "token": {"secret": "hub-token"}}
    answer = start(api, spec={**LORA, "publish": {"hub": hub}})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/spec/publish/hub"
    grid = {"publish.hub.revision": ["a", "b"]}
    assert start(api, spec={**LORA, "publish": {"hub": hub}}, grid=grid).status_code == 201


def test_the_same_key_and_body_start_one_sweep(api: Api) -> None:
    key = secrets.token_hex(8)
    first = start(api, key=key)
    before = counts(api)
    assert start(api, key=key).json() == first.json()
    other = start(api, key=key, name="other")
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    job = api.client.post("/jobs", json=JOB, headers={"Idempotency-Key": key})
    assert (job.status_code, job.json()["code"]) == (409, "idempotency_mismatch")
    assert counts(api) == before
    unusable = secrets.token_hex(8)
    assert start(api, key=unusable, grid={"adapter.r": [0]}).status_code == 422
    assert start(api, key=unusable).status_code == 201  # what was refused is not remembered


def test_a_cancel_ends_what_has_not_ended(api: Api) -> None:
    sweep = start(api).json()
    ended = sweep["runs"][0]["job_id"]
    fail(api, ended)
    for _ in range(2):  # doing it again changes nothing
        answer = api.client.post(f"/sweeps/{sweep['id']}/cancel")
        assert answer.status_code == 202
        assert answer.json()["counts"] == {"failed": 1, "cancelled": 3}
        assert answer.json()["cancel_requested_at"] is not None
    api.write("UPDATE sweeps SET status = 'finished' WHERE id = :id", id=sweep["id"])
    answer = api.client.post(f"/sweeps/{sweep['id']}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (409, "sweep_finished")


def fail(api: Api, job_id: str) -> None:
    api.write(
        "UPDATE jobs SET status = 'failed', reason = 'killed', finished_at = now() WHERE id = :id",
        id=job_id,
    )


def measured(api: Api, job_id: str, *points: dict[str, Any]) -> None:
    """Have a job report these metrics."""
    for point in points:
        api.write(
            "WITH job AS (UPDATE jobs SET last_seq = last_seq + 1 WHERE id = :id RETURNING *)"
            " INSERT INTO job_events (job_id, seq, project_id, type, data)"
            " SELECT id, last_seq, project_id, 'metrics', CAST(:data AS jsonb) FROM job",
            id=job_id,
            data=json.dumps(point),
        )


def test_runs_are_put_side_by_side(api: Api) -> None:
    sweep = start(api, grid={"training.learning_rate": [0.1, 0.2]}).json()
    one, two = (run["job_id"] for run in sweep["runs"])
    measured(api, one, *({"step": n, "loss": 5.0 - n, "epoch": 0.1} for n in range(5)))
    measured(api, two, {"step": 1, "loss": 2.0, "eval_loss": 3.0, "epoch": 0.1})
    for path, query in (
        (f"/sweeps/{sweep['id']}/comparison", {}),
        ("/compare", {"jobs": f"{one}, {two}"}),
    ):
        answer = api.client.get(path, params={**query, "max_points": 4})
        assert answer.status_code == 200, answer.text
        first, second = answer.json()["jobs"]
        assert [first["id"], second["id"]] == [one, two]
        assert first["fields"] == {"training.learning_rate": 0.1}
        assert first["metrics"] == {"loss": {"last": 1.0, "smallest": 1.0, "largest": 5.0}}
        assert first["curves"]["loss"][0] == [0, 5.0]
        assert len(first["curves"]["loss"]) <= 4
        assert second["metrics"]["eval_loss"]["last"] == 3.0
    # Pages: as many as are asked for, and no more than so many bytes.
    path, query = f"/sweeps/{sweep['id']}/comparison", {"limit": 1}
    page = api.client.get(path, params=query).json()
    rest = api.client.get(path, params={**query, "cursor": page["next_cursor"]}).json()
    assert [each["id"] for each in (*page["jobs"], *rest["jobs"])] == [one, two]
    assert rest["jobs"][0]["fields"] == {"training.learning_rate": 0.2}
    assert rest["next_cursor"] is None
    bad = api.client.get(path, params={"cursor": "x"})
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid_cursor")
    other = resources.job(api)["job_id"]
    answer = api.client.get("/compare", params={"jobs": f"{one},{other}", "names": "eval_loss"})
    first, second = answer.json()["jobs"]
    assert first["curves"] == second["curves"] == {}
    assert "adapter" in second["fields"]  # null, where the other has one
    missing = api.client.get("/compare", params={"jobs": f"job_{'0' * 26}"})
    assert missing.status_code == 404
    assert api.client.get("/compare", params={"jobs": "job_1"}).status_code == 422


def test_sweeps_come_in_pages_and_are_each_projects_own(api: Api) -> None:
    ids = [start(api, grid={"training.seed": [n]}).json()["id"] for n in range(3)]
    page = api.client.get("/sweeps", params={"limit": 2, "status": "running"}).json()
    assert [each["id"] for each in page["items"]] == ids[:0:-1]
    rest = api.client.get("/sweeps", params={"cursor": page["next_cursor"], "limit": 1}).json()
    assert [each["id"] for each in rest["items"]] == ids[:1]
    bad = api.client.get("/sweeps", params={"cursor": "x"})
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid_cursor")
    with api.role("viewer") as viewer:
        assert viewer.get(f"/sweeps/{ids[0]}").status_code == 200
        assert viewer.post(f"/sweeps/{ids[0]}/cancel").status_code == 403
    api.write("INSERT INTO projects (id, name) VALUES ('prj_x', 'x') ON CONFLICT DO NOTHING")
    api.write("UPDATE sweeps SET project_id = 'prj_x' WHERE id = :id", id=ids[0])
    for method, path in (("GET", ""), ("GET", "/comparison"), ("POST", "/cancel")):
        assert api.client.request(method, f"/sweeps/{ids[0]}{path}").status_code == 404
