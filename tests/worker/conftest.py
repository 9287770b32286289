"""A migrated database, a broker and a data folder behind the process's settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import app.db
import app.settings
import app.storage
from app.settings import Settings
from tests.services import S3


def forget() -> None:
    """Make the next reader of settings, engine or store see the present environment."""
    if app.db.get_engine.cache_info().currsize:
        app.db.get_engine().dispose()
    for module in (app.settings, app.db, app.storage):
        for cached in vars(module).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()


@pytest.fixture
def settings(
    database_url: str, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    """Settings of a service with short leases; Postgres and Valkey are real."""
    values = {
        "POLAR_HOME": str(tmp_path / "폴라 home"),
        "POLAR_DATABASE_URL": database_url,
        "POLAR_BROKER_URL": valkey_url,
        "POLAR_RETRY_BASE": "0.05",
        "POLAR_FAKE_TARGET": "true",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    forget()
    yield app.settings.get_settings()
    forget()


@pytest.fixture
def store_settings(settings: Settings, s3: S3, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The same settings with a real object store."""
    del settings
    for name, value in {
        "POLAR_S3_ENDPOINT": s3.endpoint,
        "POLAR_S3_ACCESS_KEY": s3.access_key,
        "POLAR_S3_SECRET_KEY": s3.secret_key,
        "POLAR_S3_BUCKET": s3.bucket,
    }.items():
        monkeypatch.setenv(name, value)
    forget()
    return app.settings.get_settings()
