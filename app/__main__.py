"""`python -m app serve | migrate | first-key | openapi`."""

import argparse
import sys
import time
from pathlib import Path

import sqlalchemy.exc
import uvicorn
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from app import openapi
from app.db import transaction
from app.journal import write_json_lines
from app.keys.service import first_key
from app.main import create_app
from app.server import Server
from app.settings import get_settings

_DATABASE_TIMEOUT = 60.0


def serve() -> int:
    """Serve the API until SIGTERM or SIGINT; open streams get ten seconds to end."""
    settings = get_settings()
    write_json_lines()
    app = create_app(settings)
    server = Server(
        app,
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=10,
            timeout_keep_alive=30,
        ),
    )
    server.run()
    return 0 if server.started else 1


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


def print_first_key() -> int:
    """Print a new admin key on stdout, unless the default project has one."""
    with transaction() as session:
        key = first_key(session)
    if key is None:
        print("an admin key exists already; nothing was made", file=sys.stderr)  # noqa: T201
    else:
        print(key)  # noqa: T201 - shown once, to whoever runs the command
    return 0


def print_openapi() -> int:
    """Print the API's description as it is committed in openapi/openapi.json."""
    sys.stdout.write(openapi.canonical(create_app().openapi()))
    return 0


COMMANDS = {
    "serve": serve,
    "migrate": migrate,
    "first-key": print_first_key,
    "openapi": print_openapi,
}


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m app", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    return COMMANDS[parser.parse_args().command]()


if __name__ == "__main__":
    sys.exit(main())
