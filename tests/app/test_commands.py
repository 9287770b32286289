"""`python -m app …`: what operators and the stack run."""

import json
import os
import re
import signal
import stat
from pathlib import Path

from tests.app.server import environment, run_app, running
from tests.services import ROOT, S3, wait_until


def test_the_first_key_is_printed_once(database_url: str, valkey_url: str, tmp_path: Path) -> None:
    variables = environment(database_url, valkey_url, None, tmp_path)
    first = run_app("first-key", variables)
    assert re.fullmatch(r"polar_[0-9a-f]{12}_[A-Za-z0-9_-]{43}\n", first.stdout), first.stderr
    second = run_app("first-key", variables)
    assert (second.returncode, second.stdout) == (0, "")
    assert "exists already" in second.stderr


def test_migrating_twice_changes_nothing(
    database_url: str, valkey_url: str, tmp_path: Path
) -> None:
    done = run_app("migrate", environment(database_url, valkey_url, None, tmp_path))
    assert done.returncode == 0, done.stderr


def test_without_keys_everybody_is_admin_of_the_default_project(
    database_url: str, valkey_url: str, s3: S3, tmp_path: Path
) -> None:
    variables = environment(database_url, valkey_url, s3, tmp_path)
    with running({**variables, "POLAR_AUTH": "none"}) as api, api.with_key(None) as client:
        assert client.get("/api-keys").status_code == 200
        made = client.put("/secrets/a", json={"value": "0123456789"})
        assert made.status_code == 200, made.text
        key = tmp_path / "secrets" / "key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert key.stat().st_uid == os.getuid()


def test_an_outage_is_503_and_ends_with_it(
    database_url: str, valkey_url: str, s3: S3, tmp_path: Path
) -> None:
    """A database that cannot be reached: no stack trace, `Retry-After`, the part's name."""
    unreachable = re.sub(r":\d+/", ":1/", database_url)
    variables = environment(unreachable, valkey_url, s3, tmp_path)
    with running({**variables, "POLAR_AUTH": "none"}) as api, api.with_key(None) as client:
        answer = client.get("/jobs")
        assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert "Traceback" not in answer.text
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["missing"]) == (503, ["database"])
        assert client.get("/healthz").status_code == 200
    with running(variables, key="polar_0_0") as api:
        assert api.client.get("/jobs").status_code == 503


def test_ready_names_what_is_missing(
    database_url: str, valkey_url: str, s3: S3, tmp_path: Path
) -> None:
    variables = environment(database_url, re.sub(r":\d+/", ":1/", valkey_url), s3, tmp_path)
    variables |= {"POLAR_MLFLOW_URL": "http://127.0.0.1:1", "S3_ENDPOINT": "http://127.0.0.1:1"}
    with running({**variables, "POLAR_AUTH": "none"}) as api, api.with_key(None) as client:
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json() == {
            "ready": False,
            "missing": ["broker", "store"],
            "degraded": ["mlflow", "workers"],
        }


def test_serving_stops_cleanly(database_url: str, valkey_url: str, s3: S3, tmp_path: Path) -> None:
    variables = environment(database_url, valkey_url, s3, tmp_path)
    with running({**variables, "POLAR_AUTH": "none"}) as api:
        log = api.log
        process = api.process
    wait_until(lambda: process.poll() is not None)
    assert process.returncode in (0, -signal.SIGTERM)  # uvicorn passes the signal on at the end
    for line in log.read_text().splitlines():
        assert json.loads(line)["level"] in ("info", "warning"), line


def test_the_committed_description_is_the_codes_own(
    tmp_path: Path, database_url: str, valkey_url: str
) -> None:
    """`make openapi` writes it; a difference here means that it was not run."""
    done = run_app("openapi", environment(database_url, valkey_url, None, tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == (ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8")
