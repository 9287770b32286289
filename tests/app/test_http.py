"""What every request meets: keys, roles, ids, sizes, problems, headers, the access log."""

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from tests.app import resources
from tests.app.server import Api, running
from tests.services import wait_until

PROBLEM = "application/problem+json"


@pytest.fixture
def anonymous(api: Api) -> Iterator[httpx.Client]:
    with api.with_key(None) as client:
        yield client


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_is_open_and_without_details(anonymous: httpx.Client, path: str) -> None:
    answer = anonymous.get(path)
    assert answer.status_code == 200
    assert "127.0.0.1" not in answer.text


@pytest.mark.parametrize(
    "path", ["/jobs", "/docs", "/openapi.json", "/metrics", "/nothing", "/jobs/job_1", "/"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_without_a_key_nothing_is_answered(anonymous: httpx.Client, method: str, path: str) -> None:
    answer = anonymous.request(method, path, content=b"{not json")
    assert (answer.status_code, answer.json()["code"]) == (401, "no_key")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["content-type"] == PROBLEM


@pytest.mark.parametrize(
    "header",
    [
        "Bearer polar_000000000000_wrong",
        "Bearer polar_",
        "Basic polar_a_b",
        "Bearer hf_123",
        "polar_a_b",
        "Bearer polar_\u00e9_x",
    ],
)
def test_a_wrong_key_is_refused(anonymous: httpx.Client, header: str) -> None:
    answer = anonymous.get("/jobs", headers={"Authorization": header.encode("latin-1")})
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")


def test_roles_include_those_before(api: Api) -> None:
    job = {
        "task": {"type": "sft"},
        "model": {"name_or_path": "m"},
        "data": {"train": [{"source": "hub", "path": "d"}]},
    }
    allowed = {
        role: [
            client.get("/jobs").status_code,
            client.post("/jobs", json=job).status_code,
            client.get("/metrics").status_code,
            client.get("/api-keys").status_code,
        ]
        for role in ("viewer", "submitter", "operator", "admin")
        for client in [api.role(role)]
    }
    assert allowed == {
        "viewer": [200, 403, 403, 403],
        "submitter": [200, 201, 403, 403],
        "operator": [200, 201, 200, 403],
        "admin": [200, 201, 200, 200],
    }


def test_keys_are_shown_once_stored_hashed_and_can_be_revoked(api: Api) -> None:
    made = api.client.post("/api-keys", json={"name": "ci", "role": "viewer"}).json()
    assert re.fullmatch(rf"polar_{made['prefix']}_[A-Za-z0-9_-]{{43}}", made["key"])
    listed = api.client.get("/api-keys").text
    assert made["key"] not in listed
    assert made["key"].split("_", 2)[2] not in str(api.rows("SELECT * FROM api_keys"))
    client = api.with_key(made["key"])
    assert client.get("/jobs").status_code == 200
    used = "SELECT last_used_at FROM api_keys WHERE id = :id"
    first = api.rows(used, id=made["id"])
    assert first != [(None,)]
    assert client.get("/jobs").status_code == 200
    assert api.rows(used, id=made["id"]) == first  # not written for every request
    assert api.client.delete(f"/api-keys/{made['id']}").status_code == 204
    assert client.get("/jobs").status_code == 401
    assert api.client.delete(f"/api-keys/{made['id']}").status_code == 404


def test_the_last_admin_key_stays(api: Api) -> None:
    admins = [k for k in api.client.get("/api-keys").json()["items"] if k["role"] == "admin"]
    for extra in admins[:-1]:
        assert api.client.delete(f"/api-keys/{extra['id']}").status_code == 204
    refused = api.client.delete(f"/api-keys/{admins[-1]['id']}")
    assert (refused.status_code, refused.json()["code"]) == (409, "last_admin_key")


def test_problems_have_one_shape(api: Api) -> None:
    client = api.client
    as_json = {"Content-Type": "application/json"}
    ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    cases = [
        (client.get("/nothing"), 404),
        (client.get(f"/jobs/job_{ulid}"), 404),
        (client.get("/jobs/42"), 422),
        (client.put("/jobs"), 405),
        (client.post("/jobs", content=b'{"task": ', headers=as_json), 400),
        (client.post("/jobs", content=b"{}", headers={"Content-Type": "text/plain"}), 422),
        (client.post("/jobs"), 422),
        (client.post("/jobs", json=[1]), 422),
        (client.post("/jobs", json="x" * 2_000_000), 413),
    ]
    for answer, status in cases:
        problem = answer.json()
        assert (answer.status_code, problem["status"]) == (status, status), answer.text
        assert answer.headers["content-type"] == PROBLEM
        assert {"type", "title", "code", "message", "detail", "errors"} <= problem.keys()
        assert isinstance(problem["message"], str)
        assert problem["message"] == problem["detail"]
        assert problem["request_id"] == answer.headers["x-request-id"]
    assert "character 9" in cases[4][0].json()["message"]
    assert "Content-Type: application/json" in cases[5][0].json()["message"]
    assert cases[3][0].headers["allow"]


def test_a_body_without_length_is_cut_off_at_the_limit(api: Api) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"name": "'
        for _ in range(40):
            yield b"x" * 65_536

    answer = api.client.post(
        "/jobs", content=chunks(), headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("body", [b'{"name": "\xff"}', b"[" * 20_000], ids=["encoding", "depth"])
def test_an_unreadable_body_says_what_it_must_be(api: Api, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = api.client.post("/jobs", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_json")
    assert "JSON in UTF-8" in answer.json()["message"]


def test_a_body_that_may_be_left_out_is_explained_as_well(api: Api) -> None:
    job = f"/jobs/job_{'0' * 26}"
    answer = api.client.post(f"{job}/clone", json={"override": {}})
    assert answer.status_code == 422
    assert "did you mean `overrides`?" in answer.json()["message"]
    answer = api.client.post(f"{job}/retry", json={"from_scratch": "yes"})
    assert answer.json()["errors"][0]["pointer"] == "/from_scratch"
    assert "`from_scratch` is 'yes', but it must be true or false" in answer.json()["message"]


def test_request_ids_go_in_and_out(api: Api) -> None:
    given = api.client.get("/jobs", headers={"X-Request-ID": "abc-1.2_3"})
    assert given.headers["x-request-id"] == "abc-1.2_3"
    for bad in ("a b", "x" * 200, 'q"', "é".encode()):
        made = api.client.get("/jobs", headers={"X-Request-ID": bad})
        assert re.fullmatch(r"req_[0-9A-Z]{26}", made.headers["x-request-id"])


def test_security_headers(api: Api) -> None:
    headers = api.client.get("/jobs").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_each_request_is_one_json_line_without_secrets(api: Api) -> None:
    secret = "hf_do-not-log-me"
    api.client.put("/secrets/logged", json={"value": secret}, headers={"X-Request-ID": "find-me"})
    api.client.get("/jobs", params={"q": "query-text"}, headers={"X-Request-ID": "find-me-2"})

    def lines() -> list[dict[str, object]]:
        # Whole lines only; `splitlines` would also part them at signs such as U+2028.
        found = [json.loads(line) for line in api.log.read_text().split("\n")[:-1]]
        return [f for f in found if str(f.get("request_id", "")).startswith("find-me")]

    put, get = wait_until(lambda: len(lines()) == 2 and lines())
    assert (put["method"], put["path"], put["status"]) == ("PUT", "/secrets/logged", 200)
    assert get["path"] == "/jobs"
    log = api.log.read_text()
    assert secret not in log
    assert api.key not in log
    assert "query-text" not in log


def test_metrics_name_what_an_operator_watches(api: Api) -> None:
    text = api.client.get("/metrics").text
    for name in (
        "polar_jobs{status=",
        "polar_outbox_hints{queue=",
        "polar_attempts_unreleased",
        "polar_http_request_seconds_bucket{",
        "polar_db_connections{state=",
        "polar_build{version=",
        "polar_events{",
    ):
        assert name in text


def test_the_first_scrapes_may_come_together(api: Api) -> None:
    with running(api.environment, api.key) as fresh, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: fresh.client.get("/metrics"), range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert all("polar_build" in answer.text for answer in answers)


def test_capabilities_name_every_combination_and_schema(api: Api) -> None:
    found = api.client.get("/capabilities").json()
    rows = {(c["task"], c["adapter"], c["target"]): c["reason"] for c in found["combinations"]}
    assert rows[("sft", "lora", "local")] is None
    assert "not switched on" in rows[("sft", "lora", "fake")]
    assert {task["type"] for task in found["tasks"]} == {row[0] for row in rows}
    assert "max_length" in found["tasks"][0]["json_schema"]["properties"]
    assert found["job_schema"]["required"] == ["task", "model", "data"]


def test_a_lost_connection_costs_one_request_at_most(api: Api) -> None:
    """The database drops every connection, as in a restart."""
    api.client.get("/jobs")
    end = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE application_name = 'polar' AND datname = current_database()"""
    assert api.rows(end)
    first = api.client.get("/jobs")
    assert first.status_code in (200, 503)
    assert "Traceback" not in first.text
    assert [api.client.get("/jobs").status_code for _ in range(5)] == [200] * 5


def test_a_client_that_hangs_up_mid_body_leaves_no_trace(api: Api) -> None:
    place = urlsplit(api.url)
    head = f"POST /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
    with socket.create_connection((place.hostname, place.port), timeout=5) as connection:
        connection.sendall(head.encode())
    assert api.client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/jobs", "GET, POST"),
        ("/datasets/ds_01J00000000000000000000000", "DELETE, GET"),
        ("/secrets/x", "DELETE, PUT"),
        ("/healthz", "GET"),
    ],
)
def test_a_method_that_is_not_taken_is_told_which_are(api: Api, path: str, methods: str) -> None:
    answer = api.client.request("TRACE", path)
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == methods


def test_a_slash_at_the_end_is_another_path(api: Api) -> None:
    for path in ("/jobs/", "/datasets/", "/healthz/"):
        answer = api.client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "no_such_path"), path


def test_a_parameter_that_comes_twice_is_refused(api: Api) -> None:
    answer = api.client.get("/jobs?q=one&q=two")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["message"] == "query `q` comes 2 times: give it once"


def test_a_parameter_that_is_a_list_may_come_twice(api: Api) -> None:
    made = api.client.post("/jobs", json=resources.JOB).json()["id"]
    for path in ("/jobs?limit=1&status=queued&status=failed", "/jobs?limit=1&status=queued"):
        answer = api.client.get(path)
        assert answer.status_code == 200, answer.text
        assert [job["id"] for job in answer.json()["items"]] == [made]
