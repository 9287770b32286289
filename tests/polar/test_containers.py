"""The containers run the rows of the process table and pass what checks them without an engine."""

import json
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from polar.stack.processes import SERVICES, TABLE, Entry
from tests.services import ROOT

BIN = Path(sysconfig.get_path("scripts"))
SECRETS = {
    name: f"made-up-{name.lower()}"
    for name in ("POSTGRES_PASSWORD", "VALKEY_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY")
}
NOT_IN_CONTAINERS = {"warm"}  # forks need the pids of the worker that asks
ROWS = [entry for entry in TABLE if entry.name not in NOT_IN_CONTAINERS]
OURS_ONLY_IN_CONTAINERS = {"POLAR_S3_PUBLIC_ENDPOINT"}  # there a signed URL needs another host


def compose(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "POLAR_KEY": "k" * 43}
    return subprocess.run(
        [BIN / "docker-compose", "--env-file", os.devnull, *arguments],
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    done = compose("--profile", "gpu", "--profile", "cpu", "config", "--format", "json", **SECRETS)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def test_every_process_of_the_table_is_a_container_and_nothing_else(
    services: dict[str, Any],
) -> None:
    expected = {entry.name for entry in ROWS} | {"postgres", "valkey", "s3"}
    assert set(services) - {"worker-cpu"} == expected


@pytest.mark.parametrize("entry", ROWS, ids=lambda entry: entry.name)
def test_a_container_runs_its_row(services: dict[str, Any], entry: Entry) -> None:
    container = services[entry.name]
    values = {"POLAR_S3_BUCKET": "polar", "MLFLOW_HOST": "0.0.0.0", "MLFLOW_PORT": "5000"}  # noqa: S104
    arguments = [
        re.sub(r"\$([A-Z0-9_]+)", lambda found: values[found[1]], argument)
        for argument in entry.arguments
    ]
    assert container["command"] == ["python", *arguments]
    assert set(container["environment"]) - OURS_ONLY_IN_CONTAINERS == set(entry.variables)


def test_containers_start_in_the_order_of_the_table(services: dict[str, Any]) -> None:
    order = {entry.name: entry.order for entry in TABLE}
    order |= dict.fromkeys(("postgres", "valkey", "s3"), SERVICES)
    for entry in ROWS:
        for name in services[entry.name]["depends_on"]:
            assert order[name] < entry.order, f"{entry.name} waits for {name}"


def test_a_password_is_required_and_none_is_committed() -> None:
    done = compose("config", "--quiet")
    assert done.returncode != 0
    assert "make compose-env" in done.stderr
    assert "made-up" not in (ROOT / "docker-compose.yml").read_text()


def test_ours_run_without_privileges(services: dict[str, Any]) -> None:
    for entry in ROWS:
        assert services[entry.name]["cap_drop"] == ["ALL"]
        assert services[entry.name]["read_only"] is True
    for name in ("Dockerfile.api", "Dockerfile.gpu"):
        users = re.findall(r"^USER (.*)$", (ROOT / name).read_text(), re.MULTILINE)
        assert set(users) == {"10001:10001"}


def test_images_are_pinned(services: dict[str, Any]) -> None:
    for name, container in services.items():
        tag = container["image"].rpartition(":")[2]
        assert re.match(r"\d+\.\d+", tag), f"{name}: {container['image']}"
    for name in ("Dockerfile.api", "Dockerfile.gpu"):
        bases = re.findall(r"^FROM (\S+)", (ROOT / name).read_text(), re.MULTILINE)
        assert bases[0] == "python:3.12.12-slim-bookworm"


def test_an_existing_minio_takes_the_place_of_our_store() -> None:
    files = ("-f", "docker-compose.yml", "-f", "docker-compose.minio.yml", "--profile", "gpu")
    arguments = (*files, "config", "--format", "json")
    done = compose(*arguments, S3_ENDPOINT="http://minio.example:9000", **SECRETS)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]
    assert "s3" not in found
    for name in ("api", "reconciler", "control", "prepare", "worker", "beat"):
        assert found[name]["environment"]["POLAR_S3_ENDPOINT"] == "http://minio.example:9000"
        assert "s3" not in found[name]["depends_on"]
    assert found["mlflow"]["environment"]["MLFLOW_S3_ENDPOINT_URL"] == "http://minio.example:9000"


def test_dockerfiles_pass_hadolint() -> None:
    done = subprocess.run(
        [BIN / "hadolint", "Dockerfile.api", "Dockerfile.gpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0)


def test_the_build_context_holds_what_the_dockerfiles_copy() -> None:
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = set()
    for name in ("Dockerfile.api", "Dockerfile.gpu"):
        for line in re.findall(r"^COPY (.*)$", (ROOT / name).read_text(), re.MULTILINE):
            copied |= set(line.split()[:-1])
    assert copied == kept


def test_make_writes_new_secrets_once(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    environment = {"PATH": os.environ["PATH"]}
    for _ in range(2):
        subprocess.run(["make", "compose-env"], cwd=tmp_path, env=environment, check=True)
        content = (tmp_path / ".env").read_text()
    lines = dict(line.split("=", 1) for line in content.splitlines())
    assert set(lines) == {*SECRETS, "POLAR_KEY"}
    assert len(set(lines.values())) == 5
    assert min(map(len, lines.values())) >= 32
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
