"""`polar worker join` says what is missing before it starts anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polar.stack.joined import addresses
from polar.stack.ports import free_ports
from polar.stack.services import ServiceFailed
from tests.services import ROOT, S3


def join(home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    basic = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "polar", "worker", "join", "--detach"],
        cwd=ROOT,
        env={**basic, "POLAR_HOME": str(home), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    done = join(tmp_path, POLAR_BROKER_URL="redis://x", S3_ACCESS_KEY="a")
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "a host needs POLAR_DATABASE_URL, POLAR_S3_SECRET_KEY:" in said
    assert "polar worker addresses" in said
    assert not (tmp_path / "run").exists()


def test_an_address_that_does_not_answer_is_named_without_its_password(
    tmp_path: Path, database_url: str, valkey_url: str, s3: S3
) -> None:
    port = free_ports(1)[0]
    right = {
        "POLAR_DATABASE_URL": database_url,
        "POLAR_BROKER_URL": valkey_url,
        "POLAR_S3_ENDPOINT": s3.endpoint,
        "POLAR_S3_ACCESS_KEY": s3.access_key,
        "POLAR_S3_SECRET_KEY": s3.secret_key,
        "POLAR_S3_BUCKET": s3.bucket,
    }
    wrong = {
        "the database": {
            "POLAR_DATABASE_URL": f"postgresql+psycopg://u:hidden-word@127.0.0.1:{port}/polar"
        },
        "the broker": {"POLAR_BROKER_URL": f"redis://:hidden-word@127.0.0.1:{port}/0"},
        "the object store": {"POLAR_S3_SECRET_KEY": "hidden-word"},
    }
    for what, change in wrong.items():
        done = join(tmp_path, **{**right, **change})
        assert done.returncode == 1, what
        place = s3.endpoint[7:] if "store" in what else f"127.0.0.1:{port}"
        assert f"{what} at {place} does not serve us" in " ".join(done.stderr.split())
        assert "hidden-word" not in done.stdout + done.stderr


def test_the_environment_comes_before_the_settings_file() -> None:
    settings = {
        "database_url": "postgresql://of-the-file",
        "broker_url": "redis://of-the-file",
        "s3_access_key": "k",
        "s3_secret_key": "s",
    }
    found = addresses({"POLAR_BROKER_URL": "redis://given", "S3_ENDPOINT": "http://s3"}, settings)
    assert found["POLAR_DATABASE_URL"] == "postgresql://of-the-file"
    assert found["POLAR_BROKER_URL"] == "redis://given"
    assert found["POLAR_S3_ENDPOINT"] == "http://s3"
    assert found["POLAR_S3_BUCKET"] == "polar"
    with pytest.raises(ServiceFailed, match="needs POLAR_DATABASE_URL, POLAR_BROKER_URL, POLAR_S3"):
        addresses({}, {})
