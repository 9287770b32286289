"""Things that examples need to exist: one maker for each path parameter."""

from collections.abc import Callable
from typing import Any

from tests.app.server import Api
from tests.app.stored import keep, publish

JOB = {
    "task": {"type": "sft"},
    "model": {"name_or_path": "org/model"},
    "data": {"train": [{"source": "hub", "path": "org/data"}]},
}


def job(api: Api) -> str:
    """Return the id of a new queued job."""
    answer = api.client.post("/jobs", json=JOB)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def finished_job(api: Api) -> str:
    """Return the id of a cancelled job."""
    job_id = job(api)
    assert api.client.post(f"/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    return job_id


def key(api: Api) -> str:
    """Return the id of a new viewer's key."""
    return str(api.client.post("/api-keys", json={"name": "x", "role": "viewer"}).json()["id"])


def secret(api: Api) -> str:
    """Return the name of a new secret."""
    api.client.put("/secrets/example", json={"value": "0123456789"})
    return "example"


def dataset(api: Api) -> str:
    """Return the id of a new data set."""
    new = {"name": "example", "source": "hub", "location": "org/data"}
    return str(api.client.post("/datasets", json=new).json()["id"])


def artifact(api: Api) -> dict[str, str]:
    """Return a job and the path of a file that it keeps."""
    job_id, path = job(api), "model/config.json"
    keep(api, job_id, path, b"{}")
    return {"job_id": job_id, "path": path}


def version(api: Api) -> dict[str, str]:
    """Return name, version and a file of a published model."""
    files = {"config.json": b"{}", "README.md": b"# card"}
    made = publish(api, "example", files).version
    return {"name": made.name, "version": str(made.version), "path": "config.json"}


_MAKERS: dict[str, dict[str, Callable[[Api], str]]] = {
    "/jobs": {"job_id": job},
    "/api-keys": {"key_id": key},
    "/secrets": {"name": secret},
    "/datasets": {"dataset_id": dataset},
}
_NEEDS_FINISHED = {("delete", "/jobs/{job_id}"), ("post", "/jobs/{job_id}/retry")}


def parameters(api: Api, method: str, path: str) -> dict[str, str]:
    """Return the path parameters of an operation, each naming something that exists."""
    if (method, path) in _NEEDS_FINISHED:
        return {"job_id": finished_job(api)}
    if path.startswith("/models/"):
        return version(api)
    if path.startswith("/jobs/{job_id}/artifacts"):
        return artifact(api)
    makers = _MAKERS.get("/" + path.split("/")[1], {})
    return {name: make(api) for name, make in makers.items() if f"{{{name}" in path}


def form(value: Any) -> dict[str, Any]:
    """Return httpx arguments for an example of a form with a file."""
    fields = {name: text for name, text in value.items() if name != "file"}
    return {"files": {"file": ("example.jsonl", value["file"])}, "data": fields}
