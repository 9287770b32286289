"""`/api/train/*` over HTTP, as XGen's proxy sends it."""

import re
import secrets
from typing import Any

import pytest

from app.xgen.examples import GEMMA, QWEN
from tests.app.server import Api
from tests.app.xgen.walk import LEAST
from tests.services import wait_until

WORDS = {"pending", "running", "completed", "failed"}


def start(api: Api, **fields: Any) -> dict[str, Any]:
    answer = api.client.post("/api/train/start", json={**LEAST, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def run_name() -> str:
    return f"job_{secrets.token_hex(8)}"


@pytest.mark.parametrize("form", [GEMMA, QWEN], ids=["gemma", "qwen"])
def test_a_sample_becomes_a_job(api: Api, form: dict[str, Any]) -> None:
    started = start(api, **form)
    assert (started["success"], started["status"], started["polar_status"]) == (
        True,
        "pending",
        "queued",
    )
    job = api.client.get(f"/jobs/{started['job_id']}").json()
    assert job["task_type"] == "sft"
    assert job["warnings"] == started["warnings"]
    assert {w["code"] for w in job["warnings"]} > {"xgen_use_deepspeed", "no_worker"}


def test_the_form_s_secrets_are_in_the_store_alone(api: Api) -> None:
    token, key = f"hf_{secrets.token_hex(12)}", secrets.token_hex(12)
    store = {"minio_access_key": "access-key", "minio_secret_key": key}
    data = {"dataset_load_method": "minio", "minio_data_load_bucket": "theirs"}
    hub = {"hub_model_id": "org/m", "hugging_face_token": token}
    started = start(api, **store, **data, **hub, train_data="rows.jsonl")
    job = api.client.get(f"/jobs/{started['job_id']}").text
    events = api.client.get(f"/jobs/{started['job_id']}/events").text
    rows = str(api.rows("SELECT * FROM jobs WHERE id = :id", id=started["job_id"]))
    for told in (
        str(started),
        job,
        events,
        rows,
        api.log.read_text(),
        api.client.get("/secrets").text,
    ):
        assert token not in told
        assert key not in told
    names = set(re.findall(r"xgen-[0-9a-f]{32}", job))
    kept = {item["name"] for item in api.client.get("/secrets").json()["items"]}
    assert len(names) == 2
    assert names <= kept
    again = start(api, **store, **data, **hub, train_data="rows.jsonl")
    assert (
        set(
            re.findall(r"xgen-[0-9a-f]{32}", str(api.client.get(f"/jobs/{again['job_id']}").json()))
        )
        == names
    )


def test_a_refused_form_leaves_no_secret(api: Api) -> None:
    before = api.client.get("/secrets").json()
    form = {**LEAST, "hugging_face_token": secrets.token_hex(12), "model_name_or_path": "../up"}
    answer = api.client.post("/api/train/start", json=form)
    assert answer.status_code == 422
    assert api.client.get("/secrets").json() == before
    short = api.client.post("/api/train/start", json={**LEAST, "hugging_face_token": "hf_1"})
    assert short.status_code == 422
    assert "/hugging_face_token: " in short.json()["message"]
    assert "hf_1" not in short.text


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"number_gpu": "two"}, "number_gpu"),
        ({"learning_rate": -1}, "learning_rate"),
        ({"peft_type": "none", "use_peft": True}, "peft_type"),
        ({"model_name_or_path": "../up"}, "model_name_or_path"),
        ({"model_name_or_path": "/etc"}, "model_name_or_path"),
        ({"train_data": "/etc"}, "train_data"),
        ({"train_data": ""}, "train_data"),
        ({"hub_model_id": "a--b/c", "hugging_face_token": "hf_012345678"}, "hub_model_id"),
        ({"model_subfolder": "../.."}, "model_subfolder"),
        ({"dataset_load_method": "minio"}, "train_data"),
        (
            {
                "training_method": "sft",
                "use_peft": True,
                "peft_type": "adalora",
                "adalora_target_r": 20,
            },
            "adalora_target_r",
        ),
    ],
)
def test_what_is_refused_has_the_form_s_name(api: Api, fields: dict[str, Any], name: str) -> None:
    answer = api.client.post("/api/train/start", json={**LEAST, **fields})
    problem = answer.json()
    assert answer.status_code == 422, answer.text
    assert f"/{name}: " in problem["message"]
    assert problem["message"] == problem["detail"]
    assert problem["errors"][0]["pointer"] == f"/{name}"


def test_two_starts_in_one_second_are_two_jobs_and_the_newest_answers(api: Api) -> None:
    name = run_name()
    first, second = start(api, mlflow_run_id=name), start(api, mlflow_run_id=name)
    assert first["job_id"] != second["job_id"]
    newest = api.client.get(f"/api/train/status/{name}").json()
    assert (newest["job_id"], newest["mlflow_run_id"]) == (second["job_id"], name)
    start(api, mlflow_run_id=first["job_id"])  # an id is that of its job, whatever others are named
    older = api.client.get(f"/api/train/status/{first['job_id']}").json()
    assert older["job_id"] == first["job_id"]
    stopped = api.client.delete(f"/api/train/stop/{name}").json()
    assert (stopped["job_id"], stopped["status"], stopped["polar_status"]) == (
        second["job_id"],
        "failed",
        "cancelled",
    )
    assert api.client.get(f"/api/train/status/{first['job_id']}").json()["status"] == "pending"


def test_the_run_s_name_stays_whatever_becomes_of_the_labels(api: Api) -> None:
    name = run_name()
    job_id = start(api, mlflow_run_id=name)["job_id"]
    changed = api.client.patch(f"/jobs/{job_id}", json={"labels": {"team": "search"}})
    assert changed.json()["labels"] == {"team": "search"}
    told = api.client.get(f"/api/train/status/{name}").json()
    assert (told["job_id"], told["mlflow_run_id"]) == (job_id, name)
    asked = {"mlflow_run_id": name}
    assert api.client.post("/api/train/mlflow", json=asked).json()["mlflow_run_id"] == name
    listed = {job["job_id"]: job for job in api.client.get("/api/train/jobs").json()["jobs"]}
    assert listed[job_id]["mlflow_run_id"] == name


def test_an_idempotency_key_makes_a_start_safe_to_repeat(api: Api) -> None:
    """Also where a host with a GPU has come meanwhile, which has another job made of the form."""

    def sent(key: str, **fields: Any) -> Any:
        headers = {"Idempotency-Key": key}
        return api.client.post("/api/train/start", json={**LEAST, **fields}, headers=headers)

    key = secrets.token_hex(8)
    first = sent(key)
    api.write(
        "INSERT INTO workers (id, project_id, kind, hostname, pid)"
        " VALUES ('wrk_gpu', 'prj_default', 'host', 'box', 1)"
    )
    api.write(
        "INSERT INTO devices (worker_id, index, project_id, kind, name, memory_gb)"
        " VALUES ('wrk_gpu', 0, 'prj_default', 'cuda', 'NVIDIA A100-SXM4-80GB', 80)"
    )
    wait_until(lambda: "xgen_bf16" not in sent(secrets.token_hex(8)).text)
    assert sent(key).json()["job_id"] == first.json()["job_id"]
    api.write("DELETE FROM workers WHERE id = 'wrk_gpu'")
    for other in ({"learning_rate": 0.5}, {"hugging_face_token": "hf_0123456789"}):
        refused = sent(key, **other)
        assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_mismatch")


def test_all_jobs_are_listed_with_a_word_each(api: Api) -> None:
    started = start(api, mlflow_run_id=run_name())
    listed = api.client.get("/api/train/jobs").json()
    assert listed["jobs"][0]["job_id"] == started["job_id"]
    assert listed["total"] == len(listed["jobs"])
    assert {job["status"] for job in listed["jobs"]} <= WORDS


def test_who_is_not_there_is_not_found(api: Api) -> None:
    for method, path in (("GET", "status"), ("DELETE", "stop")):
        answer = api.client.request(method, f"/api/train/{path}/job_19990101_000000")
        assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")


def test_a_viewer_looks_and_does_not_start(api: Api) -> None:
    name = start(api, mlflow_run_id=run_name())["mlflow_run_id"]
    viewer = api.role("viewer")
    assert viewer.get(f"/api/train/status/{name}").status_code == 200
    assert viewer.post("/api/train/start", json=LEAST).status_code == 403
    assert viewer.delete(f"/api/train/stop/{name}").status_code == 403


def test_a_run_is_told_by_either_name(api: Api) -> None:
    name = run_name()
    job_id = start(api, mlflow_run_id=name, project_name="shop 한국어")["job_id"]
    asked = {"mlflow_url": None, "mlflow_exp_id": "", "mlflow_run_id": name}
    told = api.client.post("/api/train/mlflow", json=asked).json()
    assert (told["job_id"], told["status"], told["run_status"]) == (job_id, "pending", "SCHEDULED")
    assert (told["run_id"], told["experiment_name"]) == (None, "shop 한국어")
    assert told["params"]["training.learning_rate"] == "2e-05"
    run_id = secrets.token_hex(16)
    api.write(
        "INSERT INTO mlflow_runs (job_id, project_id, experiment_id, run_id)"
        " VALUES (:id, 'prj_default', '7', :run_id)",
        id=job_id,
        run_id=run_id,
    )
    for experiment in ("7", "shop 한국어"):
        asked = {"mlflow_exp_id": experiment, "mlflow_run_id": run_id}
        told = api.client.post("/api/train/mlflow", json=asked).json()
        assert (told["job_id"], told["run_id"], told["run_status"]) == (job_id, run_id, "RUNNING")
    other = api.client.post(
        "/api/train/mlflow", json={"mlflow_exp_id": "8", "mlflow_run_id": run_id}
    )
    assert (other.status_code, other.json()["code"]) == (404, "run_not_found")


def test_a_run_of_an_address_from_a_browser_is_refused(api: Api) -> None:
    asked = {"mlflow_url": "http://me:word@169.254.169.254/latest", "mlflow_run_id": "x"}
    answer = api.client.post("/api/train/mlflow", json=asked)
    assert answer.status_code == 422
    assert "mlflow_url" in answer.json()["message"]
    assert "word" not in answer.json()["message"]
    absent = api.client.post("/api/train/mlflow", json={"mlflow_run_id": "0" * 32})
    assert absent.status_code == 404
