"""A host that trains for a service elsewhere: the rows of the process table that a host runs.

    python -m polar.stack.joined OPTIONS     (JSON: home; addresses come from the environment)

It needs the addresses of the service's database, broker and store, and nothing else of it.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import psycopg
import redis
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from polar.stack.home import Home
from polar.stack.processes import BROKER, DATABASE, STORE, TABLE, Entry, Process, Stack
from polar.stack.readiness import socket_answers, worker_seen
from polar.stack.services import ServiceFailed
from polar.stack.spawn import Command
from polar.stack.state import StackState
from polar.stack.supervisor import Supervisor, run_alone, supervise

ROWS = ("warm", "prepare", "worker")
DEFAULTS = {"POLAR_S3_BUCKET": "polar", "POLAR_S3_REGION": "us-east-1"}
ADDRESSES = (*DATABASE, *BROKER, *STORE)
_OPTIONAL = ("POLAR_S3_ENDPOINT",)  # none: AWS's own
_WAIT = 10  # seconds for each answer of the service


def addresses(environ: Mapping[str, str], settings: Mapping[str, object]) -> dict[str, str]:
    """Return the service's addresses and keys: from the environment, or else from polar.toml.

    Raises ServiceFailed and names what is missing.
    """
    found = {}
    for name in ADDRESSES:
        short = name.removeprefix("POLAR_")
        given = environ.get(name) or (environ.get(short) if name in STORE else None)
        found[name] = str(given or settings.get(short.lower()) or DEFAULTS.get(name, ""))
    missing = [name for name, value in found.items() if not value and name not in _OPTIONAL]
    if missing:
        raise ServiceFailed(
            f"a host needs {', '.join(missing)}: `polar worker addresses` on the service's machine "
            "prints them"
        )
    return found


def check(values: Mapping[str, str]) -> None:
    """Ask database, broker and store once; raises ServiceFailed for the first that fails."""
    places: dict[str, tuple[str, Callable[[str], None]]] = {
        "the database": (values["POLAR_DATABASE_URL"], _ask_database),
        "the broker": (values["POLAR_BROKER_URL"], _ask_broker),
        "the object store": (values["POLAR_S3_ENDPOINT"], partial(_ask_store, values)),
    }
    for what, (url, ask) in places.items():
        try:
            ask(url)
        except (psycopg.Error, redis.RedisError, BotoCoreError, ClientError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ServiceFailed(f"{what} at {_place(url)} does not serve us: {reason}") from None


def _place(url: str) -> str:
    """Return host and port of a URL, without the password that is in it."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.hostname else "AWS S3"


def _ask_database(url: str) -> None:
    address = url.replace("+psycopg", "", 1)
    with psycopg.connect(address, connect_timeout=_WAIT) as connection:
        connection.execute("SELECT 1 FROM workers LIMIT 1")


def _ask_broker(url: str) -> None:
    options = {"socket_timeout": _WAIT, "socket_connect_timeout": _WAIT}
    with redis.Redis.from_url(url, **options) as client:
        client.ping()


def _ask_store(values: Mapping[str, str], endpoint: str) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint or None,
        aws_access_key_id=values["POLAR_S3_ACCESS_KEY"],
        aws_secret_access_key=values["POLAR_S3_SECRET_KEY"],
        region_name=values["POLAR_S3_REGION"],
        config=Config(
            connect_timeout=_WAIT,
            read_timeout=_WAIT,
            retries={"total_max_attempts": 2},
            s3={"addressing_style": "path" if endpoint else "auto"},
        ),
    )
    client.head_bucket(Bucket=values["POLAR_S3_BUCKET"])


class JoinedHost(Stack):
    """A host's rows, with the addresses of a service elsewhere."""

    @cached_property
    def values(self) -> dict[str, str]:
        """Every variable that a host's row names."""
        own = {
            "POLAR_HOME": str(self.home.path),
            "POLAR_WARM_SOCKET": str(self.home.warm_socket()),
            "HF_HOME": str(self.home.path / "hub"),
            "POLAR_SECRET_KEY_FILE": str(key_file(self.home)),
            "POLAR_MODEL_FOLDERS": json.dumps(self.model_folders()),
            "POLAR_MOVED_FOLDERS": json.dumps(self.moved_folders()),
        }
        return {**addresses(os.environ, self.home.settings()), **own, **self.overrides}

    def environment(self, entry: Entry) -> dict[str, str]:
        """Return a row's variables; what is not set here is not set there."""
        return {name: value for name, value in super().environment(entry).items() if value}

    def command(self, entry: Entry) -> Command:
        """Return a row's command."""
        return Command([sys.executable, *entry.arguments], self.environment(entry))

    def _readiness(self, entry: Entry) -> Callable[[int], bool] | None:
        if entry.ready == "socket":
            return lambda pid: socket_answers(self.home.warm_socket())  # noqa: ARG005
        address = self.values["POLAR_DATABASE_URL"].replace("+psycopg", "", 1)
        return partial(worker_seen, lambda: psycopg.connect(address, connect_timeout=_WAIT))

    def processes(self) -> list[Process]:
        """Return what a host runs."""
        return [
            Process(
                entry.name,
                self.command(entry),
                entry.order,
                self._readiness(entry),
                required=entry.required,
                timeout=entry.timeout,
            )
            for entry in TABLE
            if entry.name in ROWS
        ]


def key_file(home: Home) -> Path:
    """Return where the key of the stored secrets is kept here."""
    return Path(os.environ.get("POLAR_SECRET_KEY_FILE") or home.secrets / "key")


def main() -> int:
    """Run the host that the options describe."""
    home = Home(Path(json.loads(sys.argv[1])["home"]))

    def run(state: StackState) -> int:
        state.role = "host"
        host = JoinedHost(home, {}, state.identity)
        return asyncio.run(supervise(Supervisor(home, host.processes(), state)))

    return run_alone(home, "polar worker join", run)


if __name__ == "__main__":
    sys.exit(main())
