"""B33: every field that becomes a part of a path: none of them leads out of its place."""

from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.app import resources
from tests.app.server import Api

CLIMBS = [
    "../../../../etc/passwd",
    "..",
    "a/../../b",
    "/etc/passwd",
    "..\\..\\windows",
    "a\u2025/b\r\nX-Injected: 1",
    "....//....//etc/passwd",
    "%2e%2e%2fetc%2fpasswd",
    "file:///etc/passwd",
    "a/./../..",
    "~root/.ssh/id_rsa",
    "C:\\x",
    "a\x1b[2J",
]


def submit(api: Api, **blocks: Any) -> httpx.Response:
    job = {**resources.JOB, **blocks}
    return api.client.post("/jobs", json=job)


@pytest.mark.parametrize("value", CLIMBS)
def test_b33_fields_of_a_spec_that_become_paths(api: Api, value: str) -> None:
    source = {"source": "hub", "path": "org/data"}
    secret = {"secret": value}
    places: list[dict[str, Any]] = [
        {"name": value},
        {"publish": {"name": value}},
        {"model": {"source": "folder", "name_or_path": value}},
        {"model": {"name_or_path": "org/model", "subfolder": value}},
        {"model": {"source": "registry", "name_or_path": value}},
        {"model": {"source": "job", "name_or_path": value}},
        {"model": {"name_or_path": "org/model", "token": secret}},
        {"data": {"train": [{**source, "source": "folder", "path": value}]}},
        {"data": {"train": [{**source, "source": "dataset", "path": value}]}},
        {"data": {"train": [{**source, "source": "upload", "path": value}]}},
        {"data": {"train": [{**source, "source": "s3", "path": value}]}},
        {"data": {"train": [{**source, "token": secret}]}},
    ]
    for blocks in places:
        inner = blocks.get("model", {})
        if "subfolder" in inner and ".." not in value.split("/") and not value.startswith("/"):
            continue  # a folder of an odd name within the model
        answer = submit(api, **blocks)
        assert answer.status_code == 422, (blocks, answer.text)
        assert "etc/passwd: " not in answer.text


@pytest.mark.parametrize("value", [c for c in CLIMBS if "%2e" not in c and not c.startswith("~")])
@pytest.mark.parametrize("block", ["model", "data"])
def test_b33_a_revision_is_what_git_takes_for_one(api: Api, block: str, value: str) -> None:
    """It becomes a file's name in the cache of the hub."""
    blocks: dict[str, Any] = {
        "model": {"model": {"name_or_path": "org/model", "revision": value}},
        "data": {"data": {"train": [{"source": "hub", "path": "org/data", "revision": value}]}},
    }[block]
    answer = submit(api, **blocks)
    assert answer.status_code == 422, answer.text
    assert "revision" in answer.json()["message"]


@pytest.mark.parametrize("value", ["main", "refs/pr/7", "v1.0-rc.1", "a" * 40, "3", "feature/x_y"])
def test_usual_revisions_are_taken(api: Api, value: str) -> None:
    assert submit(api, model={"name_or_path": "org/model", "revision": value}).status_code == 201


@pytest.mark.parametrize("value", CLIMBS)
def test_b33_names_and_paths_of_requests(api: Api, value: str) -> None:
    made = resources.job(api)["job_id"]
    for template in ("/jobs/{0}/artifacts/{1}", "/secrets/{1}", "/models/{1}", "/datasets/{1}"):
        answer = api.client.get(template.format(made, quote(value, safe="").replace(".", "%2E")))
        assert 400 <= answer.status_code < 500, (template, answer.text)
        assert "root:" not in answer.text
        assert "x-injected" not in answer.headers


@pytest.mark.parametrize("value", CLIMBS)
def test_b33_the_file_name_of_an_upload_is_a_name(api: Api, value: str) -> None:
    """Whatever it says, the file lands below its own data set, and comes back under a name."""
    query = {"name": "climber", "file_name": f"{value}.jsonl"}
    answer = api.client.post("/datasets", params=query, content=b'{"text": "a"}\n')
    if answer.status_code == 422 or answer.status_code == 400:
        return
    assert answer.status_code == 201, answer.text
    [(location, name)] = api.rows(
        "SELECT location, file_name FROM datasets WHERE id = :id", id=answer.json()["id"]
    )
    assert ".." not in location.split("/")
    assert location.startswith("prj_default/datasets/")
    assert not set("/\\\r\n") & set(name)


def test_a_template_that_is_none_is_refused_at_submission(api: Api) -> None:
    for text, reason in (
        ("{% for m in messages %}", "is not valid Jinja: line 1"),
        ("plain words", "is neither 'auto', 'tokenizer', a known name nor a Jinja template"),
        ("{{ " + "(" * 3_000, "is nested too deeply"),
    ):
        answer = submit(api, task={"type": "sft", "chat_template": text})
        assert answer.status_code == 422, answer.text
        [wrong] = answer.json()["errors"]
        assert wrong["pointer"] == "/task/chat_template"
        assert reason in wrong["message"]
    good = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert submit(api, task={"type": "sft", "chat_template": good}).status_code == 201
