"""Postgres in a back-up: one snapshot, dumped by pg_dump; a hold on the store meanwhile.

pg_dump, not pg_basebackup: a dump needs no rights beyond the database's owner, can be read by every
later Postgres on every machine, and shares its snapshot with the question what the rows refer to.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psycopg
import psycopg.sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from polar.backup.errors import BackupFailed
from polar.stack.services import ServiceFailed, postgres_binaries
from polar.stack.spawn import basic_environment

Connection = psycopg.Connection[tuple[object, ...]]
_LOCK_WAIT = "60s"
_MIGRATION = 0x504F4C4152  # migrations/env.py holds this lock
_LOOK = 0.2
Report = Callable[[int], None]


@dataclass(frozen=True)
class Snapshot:
    """One state of the database, kept while its transaction is open.

    `version` is Postgres's `server_version_num`, `tables` Alembic's revision; no transaction of the
    snapshot has the id `next_transaction` or a higher one.
    """

    name: str
    next_transaction: int
    version: int
    tables: str


def connect(url: str, *, autocommit: bool = True) -> Connection:
    """Connect to a database by its SQLAlchemy URL; raises BackupFailed."""
    try:
        return psycopg.connect(plain(url), autocommit=autocommit, connect_timeout=10)
    except psycopg.Error as error:
        raise BackupFailed(f"the database does not answer: {error}") from None


def plain(url: str) -> str:
    """Return a SQLAlchemy URL as libpq wants it."""
    return url.replace("+psycopg", "", 1)


class Hold:
    """Nothing is deleted from the store while this stands; see app/backups/hold.py."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def check(self) -> None:
        """Raise BackupFailed unless the hold stood until now."""
        query: LiteralString = (
            "SELECT count(*) FROM pg_locks"
            " WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND granted"
        )
        try:
            row = self._connection.execute(query).fetchone()
        except psycopg.Error:
            row = None
        if row is None or row[0] != 1:
            raise BackupFailed(
                "the connection to the database broke while the objects were copied, so some may "
                "have been deleted meanwhile; take the back-up again"
            )


@contextmanager
def hold(url: str, patience: str = "10s") -> Iterator[Hold]:
    """Keep everything in the store until the block ends.

    Raises BackupFailed when another back-up is still being taken after `patience`.
    """
    with connect(url) as connection:
        try:
            connection.execute("SELECT set_config('lock_timeout', %s, false)", [patience])
            connection.execute("SELECT pg_advisory_lock(hashtext('polar.backup'))")
        except psycopg.errors.LockNotAvailable:
            raise BackupFailed("another back-up is being taken; wait for its end") from None
        yield Hold(connection)
        # A server sees the end of a connection a moment later; deletions may go on at once.
        with suppress(psycopg.Error):
            connection.execute("SELECT pg_advisory_unlock_all()")


@contextmanager
def snapshot(url: str) -> Iterator[Snapshot]:
    """Keep one state of the database until the block ends; raises BackupFailed.

    It takes no transaction id and locks no row: only a migration waits for it, or it for that.
    """
    query: LiteralString = (
        "SELECT pg_export_snapshot(), pg_snapshot_xmax(pg_current_snapshot())::text,"
        " current_setting('server_version_num'), (SELECT version_num FROM alembic_version)"
    )
    with connect(url, autocommit=False) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        try:
            connection.execute("SET lock_timeout = '60s'")
            connection.execute("SELECT pg_advisory_lock_shared(%s)", [_MIGRATION])
            connection.commit()  # the session keeps the lock; the snapshot is taken behind it
            row = connection.execute(query).fetchone()
        except psycopg.errors.LockNotAvailable:
            raise BackupFailed("the schema is being migrated; wait for its end") from None
        except psycopg.errors.UndefinedTable:
            raise BackupFailed("the database has no tables of ours: nothing to back up") from None
        if row is None:
            raise BackupFailed("the database is not one of ours: it has no schema version")
        name, following, version, tables = map(str, row)
        yield Snapshot(name, int(following), int(version), tables)
        connection.rollback()


def dump(url: str, file: Path, report: Report, snapshot: Snapshot | None = None) -> None:
    """Write a database in pg_dump's own format; `report` gets the bytes so far.

    Raises BackupFailed.
    """
    options = ["--format=custom", "--no-owner", "--no-privileges", f"--file={file}"]
    options.append(f"--lock-wait-timeout={_LOCK_WAIT}")
    if snapshot is not None:
        options.append(f"--snapshot={snapshot.name}")
    _run("pg_dump", options, url, lambda: report(file.stat().st_size if file.exists() else 0))


def load(url: str, file: Path) -> None:
    """Restore a dump into an empty database; raises BackupFailed."""
    options = ["--exit-on-error", "--no-owner", "--no-privileges"]
    _run("pg_restore", [*options, str(file)], url, lambda: None)


def exists(url: str, name: str) -> bool:
    """Say whether the server of `url` has a database of this name."""
    with connect(url) as connection:
        query = "SELECT 1 FROM pg_database WHERE datname = %s"
        return connection.execute(query, [name]).fetchone() is not None


def _tool(name: str) -> str:
    try:
        return str(postgres_binaries() / name)
    except ServiceFailed:
        found = shutil.which(name)
    if found is None:
        raise BackupFailed(f"{name} is missing: install the extra `stack`, or Postgres's client")
    return found


def _run(name: str, options: list[str], url: str, look: Callable[[], None]) -> None:
    """Run one of Postgres's programs on a database; its password is no argument."""
    settings = {k: str(v) for k, v in conninfo_to_dict(plain(url)).items() if v is not None}
    password = settings.pop("password", None)
    environment: Mapping[str, str] = {"PGPASSWORD": password} if password else {}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [_tool(name), "--no-password", f"--dbname={make_conninfo(**settings)}", *options],
            env={**basic_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=os.sep,
        )
        try:
            while process.poll() is None:
                look()
                time.sleep(_LOOK)
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    if process.returncode:
        raise BackupFailed(f"{name} failed: {said or process.returncode}")
