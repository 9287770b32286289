"""Brings the schema to its newest version; apart from the API, which need not hold Alembic."""

import sys
import time
from pathlib import Path

import sqlalchemy.exc
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from app.db import transaction
from app.schema import (
    MIGRATIONS,
    WrongSchema,
    check,
    newest_revision,
    read_schema,
    write_oldest_code,
)
from app.settings import get_settings
from migrations import OLDEST_CODE

_DATABASE_TIMEOUT = 60.0


def migrate() -> int:
    """Bring the schema to its newest version; waits up to a minute for the database.

    A newer one on which this version works is left alone; 1 for one on which it does not.
    """
    if not _database_answers():
        _say("the database does not answer; check POLAR_DATABASE_URL")
        return 1
    with transaction() as session:
        found = read_schema(session)
    if found.revision is not None and found.revision > newest_revision():
        return _leave_alone(found.revision)
    command.upgrade(alembic_config(), "head")
    with transaction() as session:
        write_oldest_code(session, OLDEST_CODE)
    return 0


def _leave_alone(revision: str) -> int:
    try:
        with transaction() as session:
            check(read_schema(session))
    except WrongSchema as wrong:
        _say(str(wrong))
        return 1
    _say(f"the database has the newer schema {revision}, on which this version works")
    return 0


def _say(message: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201


def alembic_config(folder: Path = MIGRATIONS) -> Config:
    """Return Alembic's configuration, wherever the process was started."""
    config = Config()
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
