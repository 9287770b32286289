"""Another project's things do not exist, on any operation; keys that are none open nothing."""

import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.keys.store import token_hash
from tests.app import resources
from tests.app.server import Api
from tests.app.test_openapi import DOCUMENT, OPEN, operations

THINGS = [
    pytest.param(method, path, id=f"{method} {path}")
    for method, path, _ in operations()
    if "{" in path
]
PLAIN = [
    pytest.param(method, path, id=f"{method} {path}")
    for method, path, _ in operations()
    if path not in OPEN
]


OWN_NAMES = {("put", "/secrets/{name}"), ("put", "/presets/{name}")}


@pytest.fixture(scope="module")
def stranger(api: Api) -> Iterator[httpx.Client]:
    """An admin of another project, on the same service."""
    project = f"prj_{secrets.token_hex(6)}"
    key = f"polar_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
    api.write("INSERT INTO projects (id, name) VALUES (:id, :id)", id=project)
    api.write(
        "INSERT INTO api_keys (id, project_id, name, role, prefix, hash)"
        " VALUES (:id, :project, 'stranger', 'admin', :prefix, :hash)",
        id=f"key_{secrets.token_hex(13).upper()}",
        project=project,
        prefix=key.split("_")[1],
        hash=token_hash(key),
    )
    with api.with_key(key) as client:
        yield client


def example_of(operation: dict[str, Any]) -> dict[str, Any]:
    """What the description gives as this operation's headers and body; httpx arguments."""
    needed = [p for p in operation.get("parameters", ()) if p["in"] == "header" and p["required"]]
    headers = {p["name"]: "0" for p in needed}
    contents = operation.get("requestBody", {}).get("content", {})
    for media_type, content in contents.items():
        value = next(iter(content["examples"].values()))["value"]
        if media_type == "application/json":
            return {"json": value, "headers": headers}
        if media_type == "multipart/form-data":
            return resources.form(value) | {"headers": headers}
        return {"content": str(value).encode(), "headers": headers | {"Content-Type": media_type}}
    return {"headers": headers}


@pytest.mark.parametrize(("method", "path"), THINGS)
def test_things_of_another_project_are_not_there(
    api: Api, stranger: httpx.Client, method: str, path: str
) -> None:
    """The very id that its owner reads; an answer that says no more than for one that is none."""
    given = resources.parameters(api, method, path)
    url = path.format(**given)
    body = example_of(DOCUMENT["paths"][path][method])
    theirs = stranger.request(method.upper(), url, **body)
    if (method, path) in OWN_NAMES:
        assert theirs.status_code == 200  # one of their own, under the same name
        assert stranger.delete(url).status_code == 204
        return
    assert theirs.status_code == 404, theirs.text
    form = "application/json" if path.startswith("/v1/") else "application/problem+json"
    assert theirs.headers["content-type"] == form
    ours = api.client.request(method.upper(), url, **body)
    assert ours.status_code != 404, ours.text


def test_lists_hold_nothing_of_another_project(api: Api, stranger: httpx.Client) -> None:
    resources.job(api)
    resources.dataset(api)
    resources.secret(api)
    resources.model(api)
    resources.upload(api)
    for path in ("/jobs", "/datasets", "/secrets", "/models", "/uploads"):
        page = stranger.get(path).json()
        assert page.get("items", page.get("data")) == [], path
    listed = stranger.get("/api-keys").json()["items"]
    assert [key["name"] for key in listed] == ["stranger"]


def test_specs_cannot_name_things_of_another_project(api: Api, stranger: httpx.Client) -> None:
    data_set = resources.dataset(api)["dataset_id"]
    resources.secret(api)
    model = resources.model(api)
    job = resources.job(api)["job_id"]
    base = resources.JOB
    sources = [
        {"data": {"train": [{"source": "dataset", "path": data_set}]}},
        {"data": {"train": [{"source": "upload", "path": data_set}]}},
        {"data": {"train": [{"source": "s3", "path": f"s3://{_bucket(api)}/prj_default/x.jsonl"}]}},
        {"model": {"source": "registry", "name_or_path": model["name"]}},
        {"model": {"source": "job", "name_or_path": job}},
        {"model": {"name_or_path": "org/model", "token": {"secret": "example"}}},
    ]
    for blocks in sources:
        answer = stranger.post("/jobs", json={**base, **blocks})
        assert answer.status_code == 422, (blocks, answer.text)
    for call in ("retry", "clone", "cancel", "pause", "resume"):
        assert stranger.post(f"/jobs/{job}/{call}").status_code == 404


def _bucket(api: Api) -> str:
    return api.environment["S3_BUCKET"]


def forged(api: Api) -> dict[str, str]:
    """Tokens that look like the real one."""
    prefix, secret = api.key.split("_", 2)[1:]
    return {
        "other secret": f"polar_{prefix}_{secrets.token_urlsafe(32)}",
        "other prefix": f"polar_{secrets.token_hex(6)}_{secret}",
        "cut": api.key[:-1],
        "longer": api.key + "A",
        "other case": api.key.swapcase().replace("POLAR", "polar"),
        "empty secret": f"polar_{prefix}_",
        "wildcard": f"polar_{prefix}_%",
        "sql": f"polar_{prefix}_' OR '1'='1",
        "the hash itself": f"polar_{prefix}_{token_hash(api.key)}",
        "unicode": f"polar_{prefix}_{secret[:-1]}\u0410",
        "null": f"polar_{prefix}_\\0",
        "jwt of nobody": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
    }


@pytest.mark.parametrize(("method", "path"), PLAIN)
def test_no_operation_opens_without_a_key(api: Api, method: str, path: str) -> None:
    url = re.sub(r"{\w+}", "x", path)
    for headers in ({}, {"Authorization": "Bearer polar_000000000000_x"}, {"X-User-ID": "admin"}):
        with api.with_key(None) as client:
            answer = client.request(method.upper(), url, headers=headers)
        assert answer.status_code == 401, answer.text


def test_forged_tokens_open_nothing(api: Api) -> None:
    for name, token in forged(api).items():
        with api.with_key(None) as client:
            headers = {"Authorization": f"Bearer {token}".encode()}
            answer = client.get("/jobs", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key"), name
    for place in ({"params": {"api_key": api.key}}, {"headers": {"Cookie": f"token={api.key}"}}):
        with api.with_key(None) as client:
            assert client.get("/jobs", **place).status_code == 401  # type: ignore[arg-type]


def test_a_replayed_key_ends_with_its_revocation_everywhere(api: Api) -> None:
    """Here at once; in another process when what it remembers of a key is five seconds old."""
    made = api.client.post("/api-keys", json={"name": "replay", "role": "viewer"}).json()
    with api.with_key(made["key"]) as client:
        assert client.get("/jobs").status_code == 200
        api.write("UPDATE api_keys SET revoked_at = now() WHERE id = :id", id=made["id"])
        deadline = time.monotonic() + 15
        while client.get("/jobs").status_code == 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert client.get("/jobs").status_code == 401
