"""Each key has its rate: real requests against several API processes that share one Valkey."""

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from polar.stack import spawn
from polar.stack.ports import free_ports
from polar.stack.services import Valkey, wait_ready
from tests.app.server import Api, running
from tests.services import wait_until

BURST = 20
LIMITS = {"POLAR_RATE_LIMIT": "0.5", "POLAR_RATE_BURST": str(BURST)}


@pytest.fixture(scope="module")
def pair(api: Api) -> Iterator[tuple[Api, Api]]:
    """Two API processes with a small rate: what they count together is what counts."""
    variables = api.environment | LIMITS
    with running(variables, api.key) as one, running(variables, api.key) as other:
        yield one, other


def new_key(api: Api) -> str:
    made = api.client.post("/api-keys", json={"name": "limited", "role": "viewer"})
    return str(made.json()["key"])


def send(api: Api, key: str, count: int) -> list[httpx.Response]:
    with api.with_key(key) as client, ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: client.get("/targets"), range(count)))


def test_a_burst_is_answered_and_then_every_key_for_itself_waits(
    api: Api, pair: tuple[Api, Api]
) -> None:
    key, other_key = new_key(api), new_key(api)
    began = time.monotonic()
    answers = [a for side in pair for a in send(side, key, BURST)]
    most = BURST + 1 + 0.5 * (time.monotonic() - began)
    statuses = Counter(a.status_code for a in answers)
    assert set(statuses) == {200, 429}
    # Less than the whole burst only by what the two hold of it for a second.
    assert BURST - 2 <= statuses[200] <= most
    refused = next(a for a in answers if a.status_code == 429)
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["code"] == "rate_limited"
    wait = int(refused.headers["retry-after"])
    assert 1 <= wait <= 3  # half a token a second
    assert refused.json()["request_id"] == refused.headers["x-request-id"]
    assert send(pair[0], other_key, 1)[0].status_code == 200

    def answered() -> bool:
        return send(pair[1], key, 1)[0].status_code == 200

    wait_until(answered, timeout=30, every=0.5)


def test_health_and_wrong_keys_are_not_counted(api: Api, pair: tuple[Api, Api]) -> None:
    key = new_key(api)
    send(pair[0], key, BURST + 5)
    with pair[0].with_key(key) as client:
        assert {client.get("/healthz").status_code for _ in range(30)} == {200}
    assert {a.status_code for a in send(pair[0], "polar_000000000000_x", BURST + 5)} == {401}


def test_every_operation_says_that_it_may_refuse(api: Api) -> None:
    document = api.client.get("/openapi.json").json()
    for path, item in document["paths"].items():
        for operation in item.values():
            answers = operation["responses"]
            assert ("429" in answers) == ("security" in operation), path
            for status in ("429", "503"):
                if status in answers:
                    assert "Retry-After" in answers[status]["headers"]


def test_without_valkey_the_limit_holds_for_each_process_and_says_so(
    api: Api, tmp_path: Path
) -> None:
    server = Valkey(tmp_path / "valkey", tmp_path / "secret", free_ports(1)[0])
    server.prepare()
    command = server.command()
    process: subprocess.Popen[bytes] = spawn.start(command, tmp_path / "valkey.log")
    wait_ready(server.is_ready, "valkey", timeout=60)
    variables = api.environment | LIMITS | {"POLAR_BROKER_URL": server.url}
    try:
        with running(variables, api.key) as alone:
            key = new_key(api)
            assert send(alone, key, 1)[0].status_code == 200
            spawn.stop(process, command)
            fresh = new_key(api)
            statuses = Counter(a.status_code for a in send(alone, fresh, BURST + 10))
            assert set(statuses) == {200, 429}
            assert "rate limits hold for each process alone" in alone.log.read_text()
    finally:
        if process.poll() is None:
            spawn.stop(process, command)


def test_security_headers_are_on_every_answer(api: Api) -> None:
    for path, key in (
        ("/jobs", api.key),
        ("/nothing", api.key),
        ("/jobs", None),
        ("/docs", api.key),
    ):
        with api.with_key(key) as client:
            headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"].startswith("default-src 'none'; frame-ancestors")
        assert "server" not in headers
