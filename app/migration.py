"""Brings the schema to its newest version; apart from the API, which need not hold Alembic."""

import sys
import time
from pathlib import Path

import sqlalchemy.exc
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from app.settings import get_settings

_DATABASE_TIMEOUT = 60.0


def migrate() -> int:
    """Bring the schema to its newest version; waits up to a minute for the database."""
    if not _database_answers():
        print("the database does not answer; check POLAR_DATABASE_URL", file=sys.stderr)  # noqa: T201
        return 1
    command.upgrade(alembic_config(), "head")
    return 0


def alembic_config() -> Config:
    """Return Alembic's configuration, wherever the process was started."""
    config = Config()
    folder = Path(__file__).resolve().parent.parent / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def _database_answers() -> bool:
    url = get_settings().database_url.get_secret_value()
    engine = create_engine(url, connect_args={"connect_timeout": 5}, hide_parameters=True)
    deadline = time.monotonic() + _DATABASE_TIMEOUT
    while True:
        try:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
        except sqlalchemy.exc.OperationalError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        else:
            engine.dispose()
            return True
