"""Ways in besides a key in a header: gateway, cookie, stream ticket; and which pages may call."""

import json
from collections.abc import Iterator

import httpx
import pytest
from pydantic import SecretStr
from starlette.datastructures import Headers

from app.auth import Role
from app.doors.cookie import clear_cookie, set_cookie
from app.doors.gateway import gateway_caller
from tests.app import resources
from tests.app.server import Api, running

SECRET = "the-gateway-s-secret"
PAGE = "http://xgen.example:3000"
USER = {"X-User-ID": "17", "X-User-Permissions": "model:train,chat:use"}


@pytest.fixture(scope="module")
def door(api: Api) -> Iterator[Api]:
    """The same service, behind a gateway and called by pages of one origin."""
    settings = {"POLAR_GATEWAY_SECRET": SECRET, "POLAR_CORS_ORIGINS": json.dumps([PAGE])}
    with running({**api.environment, **settings}, api.key) as started:
        yield started


@pytest.fixture
def nobody(door: Api) -> Iterator[httpx.Client]:
    with door.with_key(None) as client:
        yield client


def gateway(**headers: str) -> dict[str, str]:
    return {
        "X-Gateway-Secret": SECRET,
        **USER,
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }


def test_the_gateway_s_user_trains_with_the_permission_to(nobody: httpx.Client) -> None:
    theirs = {"Authorization": "Bearer eyJ.of.xgen"}  # not ours, and not looked at
    assert nobody.get("/api/train/jobs", headers=gateway() | theirs).status_code == 200
    assert nobody.post("/jobs", json=resources.JOB, headers=gateway()).status_code == 201
    assert nobody.get("/api-keys", headers=gateway()).status_code == 403
    assert nobody.get("/api-keys", headers=gateway(X_User_Superuser="true")).status_code == 200
    others = gateway(X_User_Permissions="model:trainer,chat:use")
    refused = nobody.get("/api/train/jobs", headers=others)
    assert (refused.status_code, refused.json()["code"]) == (403, "no_permission")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (USER, "no_key"),
        ({**USER, "X-User-Superuser": "true"}, "no_key"),
        ({**USER, "X-Gateway-Secret": ""}, "invalid_gateway_secret"),
        ({**USER, "X-Gateway-Secret": SECRET[:-1]}, "invalid_gateway_secret"),
        ({**USER, "X-Gateway-Secret": "½" + SECRET}, "invalid_gateway_secret"),
        (gateway(X_User_ID="17; DROP"), "no_user"),
        (gateway(X_User_ID="١٧"), "no_user"),
        ({"X-Gateway-Secret": SECRET, "X-User-Superuser": "true"}, "no_user"),
    ],
)
def test_headers_alone_are_trusted_by_nobody(
    nobody: httpx.Client, headers: dict[str, str], code: str
) -> None:
    sent = {name: value.encode() for name, value in headers.items()}
    answer = nobody.get("/api/train/jobs", headers=sent)
    assert (answer.status_code, answer.json()["code"]) == (401, code)
    assert SECRET not in answer.text


def test_a_gateway_s_secret_may_have_any_letter() -> None:
    secret = "schlüssel-des-tores"
    user = [(b"x-user-id", b"17"), (b"x-user-superuser", b"true")]
    headers = Headers(raw=[(b"x-gateway-secret", secret.encode()), *user])
    assert gateway_caller(headers, SecretStr(secret)).role is Role.ADMIN


def test_a_service_without_a_gateway_takes_no_secret(api: Api) -> None:
    with api.with_key(None) as client:
        assert client.get("/jobs", headers=gateway()).json()["code"] == "no_key"


def test_the_gateway_s_user_is_in_the_access_log_and_the_secret_is_not(
    door: Api, nobody: httpx.Client
) -> None:
    nobody.get("/api/train/jobs", headers=gateway(X_User_ID="4711"))
    said = door.log.read_text()
    assert '"user": "4711"' in said
    assert SECRET not in said


def test_a_browser_keeps_the_key_in_a_cookie_that_no_script_reads(door: Api) -> None:
    with door.with_key(door.key) as client:
        opened = client.post("/session")
        cookie = opened.headers["set-cookie"]
        assert opened.status_code == 204
        assert all(part in cookie for part in ("polar_key=polar_", "HttpOnly", "SameSite=Lax"))
    with door.with_key(None) as browser:
        browser.cookies.set("polar_key", door.key)
        assert browser.get("/jobs").status_code == 200
        closed = browser.delete("/session", headers={"Origin": PAGE})
        assert "Max-Age=0" in closed.headers["set-cookie"]
        browser.cookies.clear()
        browser.cookies.set("polar_key", "polar_000000000000_wrong")
        assert browser.get("/jobs").json()["code"] == "invalid_key"


def test_a_cookie_is_taken_away_from_wherever_it_was_set() -> None:
    """A browser that gets `Lax` in an answer to another site's page keeps what it has."""
    for cross_site, said in ((True, "SameSite=None; Secure"), (False, "SameSite=Lax; Secure")):
        assert said in set_cookie("polar_key", secure=True, cross_site=cross_site)
        assert said in clear_cookie(secure=True, cross_site=cross_site)


def test_a_session_needs_a_key_in_the_header(nobody: httpx.Client) -> None:
    assert nobody.post("/session", headers=gateway()).json()["code"] == "no_key"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (PAGE, 201),
        (None, 403),
        ("https://evil.example", 403),
        (f"{PAGE}.evil.example", 403),
        ("http://[", 403),
    ],
)
def test_with_the_cookie_alone_only_known_pages_change_anything(
    door: Api, origin: str | None, status: int
) -> None:
    with door.with_key(None) as browser:
        browser.cookies.set("polar_key", door.key)
        headers = {"Origin": origin} if origin else {}
        answer = browser.post("/jobs", json=resources.JOB, headers=headers)
        assert answer.status_code == status
        assert browser.post("/jobs", json=resources.JOB, headers={"Origin": door.url}).is_success


def test_only_pages_of_listed_origins_may_read_answers(nobody: httpx.Client) -> None:
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "authorization,content-type"
    allowed = nobody.options("/api/train/start", headers=asked)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == PAGE
    assert allowed.headers["access-control-allow-credentials"] == "true"
    refused = nobody.get("/jobs", headers={"Origin": PAGE})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == PAGE  # the page can read why
    assert "origin" in refused.headers["vary"].lower()
    for origin in ("https://evil.example", "null"):
        other = nobody.options("/api/train/start", headers={**asked, "Origin": origin})
        assert "access-control-allow-origin" not in other.headers


def test_a_ticket_opens_one_stream_once(door: Api, nobody: httpx.Client) -> None:
    job = resources.job(door)["job_id"]
    with door.with_key(door.key) as client:
        given = client.post("/stream-tickets", json={"job_id": job})
        assert (given.status_code, given.json()["expires_in"]) == (201, 60)
        ticket, path = given.json()["ticket"], given.json()["path"]
        other = client.post("/stream-tickets", json={}).json()["path"]
        assert client.post("/stream-tickets", json={"job_id": f"job_{'0' * 26}"}).status_code == 404
    assert [nobody.get(path).status_code for _ in range(2)] == [200, 401]
    assert nobody.get(path).json()["code"] == "invalid_ticket"
    assert nobody.get(other).status_code == 200
    assert ticket not in door.log.read_text()


def test_a_ticket_opens_nothing_else(door: Api, nobody: httpx.Client) -> None:
    job = resources.job(door)["job_id"]
    for method, path in (("GET", "/jobs"), ("GET", "/events"), ("POST", f"/jobs/{job}/cancel")):
        with door.with_key(door.key) as client:
            ticket = client.post("/stream-tickets", json={"job_id": job}).json()["ticket"]
        assert nobody.request(method, path, params={"ticket": ticket}).status_code == 401


@pytest.mark.parametrize("origin", ["*", "xgen.example", "http://a.example/", "http://*.example"])
def test_an_origin_is_written_out(origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pydantic import ValidationError

    from app.settings import Settings

    monkeypatch.setenv("POLAR_CORS_ORIGINS", json.dumps([origin]))
    with pytest.raises(ValidationError, match="is no origin"):
        Settings()
