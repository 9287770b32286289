"""Every failure below `/v1` has OpenAI's shape, wherever it comes from."""

from typing import Any

import httpx
import openai
import pytest

from app.errors import TooManyRequests, Unavailable
from app.openai.errors import answer_of, shaped, status_of
from app.problem import of_service_error, problem
from tests.app.openai.client import client_of
from tests.app.server import Api, running

JOBS = "/v1/fine_tuning/jobs"


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code"),
    [
        ("GET", "/v1/nothing", {}, 404, "no_such_path"),
        ("GET", f"{JOBS}/ftjob-x", {}, 404, "job_not_found"),
        ("DELETE", JOBS, {}, 405, "method_not_allowed"),
        ("POST", JOBS, {"content": b"x" * (2**20 + 1)}, 413, "too_large"),
        ("POST", JOBS, {"content": b"{", "headers": {"Content-Type": "application/json"}}, 400,
         "malformed_json"),
        ("POST", JOBS, {"json": {}}, 400, "invalid_payload"),
        ("GET", JOBS, {"params": {"limit": 1000}}, 400, "invalid_payload"),
        ("GET", "/v1", {}, 404, "no_such_path"),
        ("POST", "/v1/files", {"json": {}}, 400, "unsupported_value"),
        ("POST", "/v1/files", {"files": {"fille": b"x"}}, 400, "unknown_field"),
    ],
)  # fmt: skip
def test_an_error_in_its_shape(
    api: Api, method: str, path: str, sent: dict[str, Any], status: int, code: str
) -> None:
    answer = api.client.request(method, path, **sent)
    assert answer.status_code == status, answer.text
    assert error_of(answer)["code"] == code


def test_a_query_s_parameter_is_named(api: Api) -> None:
    error = error_of(api.client.get(JOBS, params={"limit": 1000}))
    assert error["param"] == "limit"
    assert error_of(api.client.get(JOBS, params={"afer": "x"}))["param"] == "afer"
    # What another list takes is no parameter of this one, and the other way round.
    assert api.client.get(JOBS, params={"label.a": "b"}).status_code == 400
    assert api.client.get("/jobs", params={"metadata[a]": "b"}).status_code == 422


def test_without_a_key(api: Api) -> None:
    with client_of(api, "sk-1") as client, pytest.raises(openai.AuthenticationError) as refused:
        client.fine_tuning.jobs.list()
    assert refused.value.code == "invalid_api_key"
    with api.with_key(None) as nobody:
        answer = nobody.get(JOBS)
        assert (answer.status_code, error_of(answer)["type"]) == (401, "authentication_error")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert nobody.get("/jobs").headers["content-type"] == "application/problem+json"


def test_a_key_that_asks_too_often_is_told_when_to_go_on(api: Api) -> None:
    limits = {"POLAR_RATE_LIMIT": "1", "POLAR_RATE_BURST": "1"}
    with running({**api.environment, **limits}, api.key) as slow:
        answers = [slow.client.get(JOBS) for _ in range(20)]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert error_of(refused)["code"] == "rate_limit_exceeded"
        assert error_of(refused)["type"] == "rate_limit_error"


def test_what_clients_repeat_by_themselves_is_what_repeating_helps() -> None:
    """They repeat 409, 429 and 5xx."""

    def told(status: int, code: str) -> int:
        return status_of(problem(status, "t", code, "m").model_dump())

    assert told(409, "in_flight") == 409
    assert {told(409, "job_finished"), told(422, "invalid_payload")} == {400}
    for error in (TooManyRequests(3), Unavailable("away", "store_unavailable")):
        document = of_service_error(error).model_dump()
        assert status_of(document) == error.status
    assert answer_of(problem(500, "t", "internal", "m").model_dump()).error.type == "server_error"


def test_other_paths_are_left_as_they_are() -> None:
    async def send(_: Any) -> None:
        raise AssertionError

    assert shaped({"path": "/jobs"}, send) is send
    assert shaped({"path": "/v1/files"}, send) is not send
