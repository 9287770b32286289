"""One API process for the tests of this folder, on real Postgres, Valkey and S3."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import queue
from app.settings import get_settings
from polar.stack.services import Postgres, SeaweedFS, Valkey
from tests.app.server import Api, environment, run_app, running
from tests.services import S3, migrate


@pytest.fixture(scope="session")
def api(
    postgres: Postgres, valkey: Valkey, seaweed: SeaweedFS, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    """An API of the session with a database, bucket and data folder of its own."""
    database, home = f"api_{secrets.token_hex(4)}", tmp_path_factory.mktemp("집 home")
    bucket = f"api-{secrets.token_hex(4)}"
    postgres.ensure_database(database)
    migrate(postgres, database)
    seaweed.client().create_bucket(Bucket=bucket)
    s3 = S3(seaweed.endpoint, *seaweed.keys, bucket=bucket, region=seaweed.region)
    variables = environment(postgres.url(database), valkey.url, s3, home)
    first = run_app("first-key", variables)
    assert first.returncode == 0, first.stderr
    with running({**variables, **_folders(home)}, first.stdout.strip()) as started:
        yield started


def _folders(home: Path) -> dict[str, str]:
    (home / "open data").mkdir()
    return {"POLAR_DATA_FOLDERS": f'["{home}/open data"]'}


@pytest.fixture
def nudges(api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process nudge the API under test, as workers do."""
    monkeypatch.setenv("POLAR_BROKER_URL", api.environment["POLAR_BROKER_URL"])
    get_settings.cache_clear()
    queue._client.cache_clear()
    yield
    get_settings.cache_clear()
    queue._client.cache_clear()
