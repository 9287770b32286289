"""`python -m app serve | migrate | first-key | openapi`."""

import argparse
import gc
import importlib
import sys

import uvicorn

from app import openapi
from app.db import transaction
from app.journal import write_json_lines
from app.keys.service import first_key
from app.main import create_app
from app.schema import refuse_wrong_schema
from app.server import Protocol, Server
from app.settings import get_settings


def serve() -> int:
    """Serve the API until SIGTERM or SIGINT; open streams get ten seconds to end."""
    settings = get_settings()
    refuse_wrong_schema()
    write_json_lines()
    app = create_app(settings)
    # What was made so far stays: the garbage collector need not walk it again and again.
    gc.collect()
    gc.freeze()
    Protocol.patience = settings.slow_client
    server = Server(
        app,
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=Protocol,
            ws="none",
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
    # Alembic weighs 10 MB that an API process never needs.
    return int(importlib.import_module("app.migration").migrate())


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
