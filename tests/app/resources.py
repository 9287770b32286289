"""Things that examples need to exist: one maker for each path parameter."""

import secrets
from collections.abc import Callable
from typing import Any

from app.ids import new_id
from app.openai import examples
from tests.app.server import Api
from tests.app.stored import keep, publish

JOB = {
    "task": {"type": "sft"},
    "model": {"name_or_path": "org/model"},
    "data": {"train": [{"source": "hub", "path": "org/data"}]},
}
FILE = "model/config.json"  # the example of a file's path
RUN = "job_20261130_120000"  # the example of a run
OFFERED = "example-host"  # of the example of an offer


def job(api: Api) -> dict[str, str]:
    """Make a queued job that keeps a file."""
    answer = api.client.post("/jobs", json=JOB)
    assert answer.status_code == 201, answer.text
    job_id = str(answer.json()["id"])
    keep(api, job_id, FILE, b"{}")
    return {"job_id": job_id, "path": FILE}


def finished_job(api: Api) -> dict[str, str]:
    """Make a cancelled job."""
    made = job(api)
    assert api.client.post(f"/jobs/{made['job_id']}/cancel").json()["status"] == "cancelled"
    return made


def pushed_job(api: Api) -> dict[str, str]:
    """Make a job whose push to a hub has failed."""
    api.client.put("/secrets/hub-token", json={"value": "hf_0123456789"})
    hub = {"repo_id": "org/model", "token": {"secret": "hub-token"}}
    made = api.client.post("/jobs", json={**JOB, "publish": {"hub": hub}})
    assert made.status_code == 201, made.text
    api.write(
        "INSERT INTO hub_pushes (job_id, project_id, kind, prefix, manifest_sha256, state, message)"
        " VALUES (:id, 'prj_default', 'model', 'p/', 'f', 'failed', 'the hub answered 403')",
        id=made.json()["id"],
    )
    return {"job_id": str(made.json()["id"])}


def key(api: Api) -> dict[str, str]:
    """Make a viewer's key."""
    made = api.client.post("/api-keys", json={"name": "x", "role": "viewer"}).json()
    return {"key_id": str(made["id"])}


def secret(api: Api) -> dict[str, str]:
    """Store a secret."""
    api.client.put("/secrets/example", json={"value": "0123456789"})
    return {"name": "example"}


def dataset(api: Api) -> dict[str, str]:
    """Upload a data set."""
    query = {"name": "example", "file_name": "rows.jsonl"}
    answer = api.client.post("/datasets", params=query, content=b'{"text": "a"}\n')
    assert answer.status_code == 201, answer.text
    return {"dataset_id": str(answer.json()["id"])}


def upload(api: Api) -> dict[str, str]:
    """Begin an upload in pieces that is as long as the example of a piece."""
    headers = {"Upload-Length": "72", "Upload-Metadata": "name eA==,filename eC5qc29ubA=="}
    answer = api.client.post("/uploads", headers=headers)
    assert answer.status_code == 201, answer.text
    return {"upload_id": str(answer.json()["id"])}


def model(api: Api) -> dict[str, str]:
    """Publish a model of its own."""
    name = f"example-{secrets.token_hex(4)}"
    made = publish(api, name, {FILE: b"{}"})
    return {"name": name, "version": str(made.version.version), "path": FILE}


def host(api: Api) -> dict[str, str]:
    """Register a host that is not online: what other jobs are told does not change by it."""
    worker_id = f"host-{secrets.token_hex(4)}"
    api.write(
        "INSERT INTO workers (id, project_id, kind, hostname, pid, seen_at)"
        " VALUES (:id, 'prj_default', 'host', :id, 1, now() - interval '10 minutes')",
        id=worker_id,
    )
    return {"worker_id": worker_id}


def offer(api: Api) -> dict[str, str]:
    """Hold the example's device, so that the example asks for it again; its host is not online."""
    api.write(
        "INSERT INTO workers (id, project_id, kind, hostname, pid, seen_at) VALUES"
        " (:id, 'prj_default', 'host', :id, 1, now() - interval '10 minutes')"
        " ON CONFLICT DO NOTHING",
        id=OFFERED,
    )
    api.write(
        "INSERT INTO devices (worker_id, index, project_id, kind, name)"
        " VALUES (:id, 0, 'prj_default', 'cuda', 'NVIDIA A100') ON CONFLICT DO NOTHING",
        id=OFFERED,
    )
    api.write("DELETE FROM holds WHERE worker_id = :id", id=OFFERED)
    hold_id = new_id("hold")
    api.write(
        "INSERT INTO holds (id, project_id, worker_id, device, device_name, expires_at)"
        " VALUES (:hold, 'prj_default', :id, 0, 'NVIDIA A100', now() + interval '10 minutes')",
        hold=hold_id,
        id=OFFERED,
    )
    return {"instance_id": hold_id}


def plan(api: Api) -> dict[str, str]:
    """Ask for a plan that nobody makes."""
    answer = api.client.post("/plans", json=JOB)
    assert answer.status_code == 201, answer.text
    return {"plan_id": str(answer.json()["id"])}


def webhook(api: Api) -> dict[str, str]:
    """Make a webhook in place of the others, and have it told something."""
    for each in api.client.get("/webhooks").json()["items"]:
        api.client.delete(f"/webhooks/{each['id']}")
    made = api.client.post("/webhooks", json={"url": "https://hooks.example.com/polar"})
    assert made.status_code == 201, made.text
    webhook_id = str(made.json()["id"])
    told = api.client.post(f"/webhooks/{webhook_id}/test")
    assert told.status_code == 202, told.text
    return {"webhook_id": webhook_id, "delivery_id": str(told.json()["id"])}


def openai_things(api: Api) -> dict[str, str]:
    """Make a file and a fine-tuning job, and the file that the examples of jobs name."""
    api.write(
        "INSERT INTO datasets (id, project_id, name, version, source, location)"
        " VALUES (:id, 'prj_default', 'example-file', 1, 'hub', 'org/data') ON CONFLICT DO NOTHING",
        id=f"ds_{examples.FILE_ID.removeprefix('file-')}",
    )
    file, made = dataset(api)["dataset_id"], job(api)["job_id"]
    return {
        "file_id": f"file-{file.removeprefix('ds_')}",
        "job_id": f"ftjob-{made.removeprefix('job_')}",
    }


def sweep(api: Api) -> dict[str, str]:
    """Start a sweep of two runs."""
    runs = [{}, {"training": {"learning_rate": 0.1}}]
    metric = {"name": "eval_loss", "goal": "min"}
    body = {"name": "example", "spec": JOB, "runs": runs, "metric": metric}
    made = api.client.post("/sweeps", json=body)
    assert made.status_code == 201, made.text
    return {"sweep_id": str(made.json()["id"])}


def preset(api: Api) -> dict[str, str]:
    """Keep a preset."""
    spec = {"training": {"learning_rate": 0.1}}
    kept = api.client.put("/presets/example", json={"spec": spec})
    assert kept.status_code == 200, kept.text
    return {"name": "example"}


_MAKERS: dict[str, Callable[[Api], dict[str, str]]] = {
    "jobs": job,
    "api-keys": key,
    "secrets": secret,
    "datasets": dataset,
    "uploads": upload,
    "models": model,
    "plans": plan,
    "webhooks": webhook,
    "sweeps": sweep,
    "presets": preset,
    "targets": host,
    "api": job,
    "v1": openai_things,
}
_NEEDS_FINISHED = {("delete", "/jobs/{job_id}"), ("post", "/jobs/{job_id}/retry")}
_NEEDS_RUN = ("post", "/api/train/mlflow")
_NEEDS_OFFER = "/api/train/instances"
_NEEDS_PUSH = ("post", "/jobs/{job_id}/hub/retry")


def parameters(api: Api, method: str, path: str) -> dict[str, str]:
    """Return the path parameters of an operation, each naming something that exists."""
    if (method, path) in _NEEDS_FINISHED:
        return finished_job(api)
    if (method, path) == _NEEDS_PUSH:
        return pushed_job(api)
    if path.startswith(_NEEDS_OFFER):
        return offer(api)
    if (method, path) == _NEEDS_RUN:
        form = {"model_name_or_path": "m", "train_data": "d", "mlflow_run_id": RUN}
        api.client.post("/api/train/start", json=form).raise_for_status()
        return {}
    named = "{" in path or path.startswith("/v1/")
    return _MAKERS[path.split("/")[1]](api) if named else {}


def form(value: Any) -> dict[str, Any]:
    """Return httpx arguments for an example of a form whose field `file` is a file."""
    fields = dict(value)
    return {"files": {"file": ("rows.jsonl", fields.pop("file"))}, "data": fields}
