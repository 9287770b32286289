"""`polar backup` and `polar restore` on real services: nothing is lost, refusals say why.

The whole of it, under load and with jobs that go on, is tests/e2e/test_restore.py.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.backups.hold import refuse_while_held
from app.db import get_engine
from app.s3 import StoreUnavailable
from app.settings import get_settings
from polar.backup import database
from polar.backup.archive import Archive, Draft, FolderWriter
from polar.backup.errors import BackupFailed
from polar.backup.manifest import Manifest, Versions
from polar.backup.objects import Bucket, StoreAddress
from polar.backup.places import Place, services
from polar.backup.restore import _go_on_counting
from polar.stack import control, spawn
from polar.stack.home import Home
from polar.stack.ports import free_ports
from polar.stack.services import Postgres, SeaweedFS, wait_ready
from tests.polar.backups import (
    AS_NOBODY,
    ATTEMPT,
    DONE,
    NOBODY,
    PREPARING,
    RUNNING,
    Content,
    empty_home,
    fill,
    polar,
)
from tests.services import S3


@dataclass
class Taken:
    """An installation, what its store holds, and its back-up."""

    home: Home
    content: Content
    backup: Path
    said: str
    passphrase: Path


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    """An installation that does not run, backed up into a file with sealed secrets."""
    folder = tmp_path_factory.mktemp("백업 폴더")
    home = empty_home(folder / "데이터 폴더")
    (home.path / "models" / "작은 모델").mkdir(parents=True)
    (home.path / "models" / "작은 모델" / "config.json").write_text("{}")
    home.settings_file.write_text("grace = 7.0\n")
    with services(home) as stack:
        stack.postgres.ensure_database("polar")
        content = fill(Place.of_stack(stack))
    passphrase = folder / "passphrase"
    passphrase.write_text("correct horse battery staple\n")
    target = folder / "백업 1.tar"
    done = polar(home.path, "backup", str(target), "--passphrase-file", str(passphrase))
    assert done.returncode == 0, done.stdout + done.stderr
    yield Taken(home, content, target, done.stdout, passphrase)
    shutil.rmtree(folder)


def test_a_backup_names_everything_with_its_hash(taken: Taken) -> None:
    manifest = Archive(taken.backup).manifest
    assert manifest.defects == []
    assert {e.file for e in manifest.files if e.key is None} == {
        "polar.dump",
        "secrets.sealed",
        "polar.toml",
        "models/작은 모델/config.json",
    }
    found = {e.key: (e.size, e.sha256) for e in manifest.files if e.key is not None}
    assert found == {
        key: (len(data), hashlib.sha256(data).hexdigest())
        for key, data in taken.content.objects.items()
    }
    assert taken.backup.stat().st_mode & 0o777 == 0o600
    assert "secrets in plain text" not in taken.said  # they are sealed
    secret = (taken.home.secrets / "s3").read_bytes()
    assert secret not in taken.backup.read_bytes()


def test_a_backup_is_restored_whole(taken: Taken, tmp_path: Path) -> None:
    home = Home(tmp_path / "새 집")
    home.path.mkdir()
    what = (str(taken.backup), "--passphrase-file", str(taken.passphrase), "--json")
    done = polar(home.path, "restore", *what)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 attempts ran when it was taken" in done.stderr
    sizes = [len(data) for data in taken.content.objects.values()]
    told = json.loads(done.stdout)
    assert told.pop("taken_at")
    assert told == {
        "home": str(home.path),
        "live_attempts": 1,
        "objects": len(sizes),
        "object_bytes": sum(sizes),
        "sealed": True,
    }
    assert home.settings()["grace"] == 7.0
    for file in taken.home.secrets.iterdir():
        assert (home.secrets / file.name).read_bytes() == file.read_bytes()
        assert (home.secrets / file.name).stat().st_mode & 0o777 == 0o600
    assert {path.name for path in home.path.iterdir()} == {
        *("postgres", "s3", "secrets", "models", "polar.toml", "former-models.json"),
    }
    assert home.model_places() == [str(home.models), str(taken.home.models)]
    with services(home) as stack:
        place = Place.of_stack(stack)
        bucket = Bucket(place.store)
        items = [each for prefix in ("prj_default/", "mlflow/") for each in bucket.list(prefix)]
        restored = {each.key: b"".join(bucket.read(each)) for each in items}
        assert restored == taken.content.objects
        with database.connect(place.database_url) as connection:
            _goes_on(connection, Archive(taken.backup).manifest)


def _goes_on(connection: database.Connection, manifest: Manifest) -> None:
    """The running attempt is over, its job and the preparing one wait; nothing of old is online."""
    ask = connection.execute
    assert ask("SELECT id, status FROM jobs ORDER BY id").fetchall() == [
        (DONE, "succeeded"),
        (PREPARING, "queued"),
        (RUNNING, "queued"),
    ]
    ended = "SELECT id, outcome, reason, released_at IS NOT NULL FROM attempts"
    assert ask(ended).fetchall() == [(ATTEMPT, "interrupted", "interrupted", True)]
    seqs = "SELECT seq FROM job_events WHERE job_id = %s ORDER BY seq"
    found = [row[0] for row in ask(seqs, [RUNNING]).fetchall()]
    # New events have numbers that the lost world never gave out: they begin at the time.
    assert found[:2] == [1, 2]
    assert found[2:] == list(range(found[2], found[2] + len(found) - 2))
    assert found[2] > manifest.taken_at.timestamp() * 1000
    prepared = "SELECT status, tries, lease_token FROM preparations WHERE job_id = %s"
    assert ask(prepared, [PREPARING]).fetchone() == ("waiting", 0, None)
    online = "SELECT id FROM workers WHERE seen_at > now() - interval '1 hour'"
    assert ask(online).fetchall() == []
    assert ask("SELECT * FROM devices").fetchall() == []
    # Positions in the stream of all events are transaction ids: new ones are higher than all old.
    transactions = "SELECT min(xid), max(xid) FROM job_events WHERE seq {} 2"
    old, new = (ask(transactions.format(sign)).fetchone() for sign in ("<=", ">"))
    assert old is not None
    assert new is not None
    assert old[1] < manifest.next_transaction < new[0]


@pytest.mark.sampled
def test_a_damaged_backup_and_a_filled_folder_are_refused(taken: Taken, tmp_path: Path) -> None:
    broken = tmp_path / "b.tar"
    content = bytearray(taken.backup.read_bytes())
    place = content.index(b"notes")
    content[place] ^= 1
    broken.write_bytes(content)
    done = polar(tmp_path / "home", "restore", str(broken))
    assert done.returncode == 1
    assert "(mlflow/1/run/artifacts/notes.txt) is damaged" in done.stderr
    assert not (tmp_path / "home").exists()

    (tmp_path / "filled").mkdir()
    (tmp_path / "filled" / "mine").touch()
    done = polar(tmp_path, "restore", str(taken.backup), "--home", str(tmp_path / "filled"))
    assert (done.returncode, "is not empty" in done.stderr) == (1, True)
    assert [path.name for path in (tmp_path / "filled").iterdir()] == ["mine"]

    done = polar(tmp_path / "home", "restore", str(taken.backup))
    assert (done.returncode, "--passphrase-file" in done.stderr) == (1, True)
    assert not (tmp_path / "home").exists()

    done = polar(tmp_path / "home", "restore", str(taken.backup), "--check")
    assert (done.returncode, "whole" in done.stdout) == (0, True)


def test_a_restore_that_was_killed_is_no_installation(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.restoring.mkdir(parents=True)
    with pytest.raises(control.StackFailed, match=r"a restore into .* did not end"):
        control.launch(home, control.Door(), attached=True)
    done = polar(home.path, "restore", str(tmp_path / "b"))
    assert done.returncode == 1


@pytest.mark.sampled
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run as an ordinary user")
def test_an_ordinary_user_restores_and_backs_up(taken: Taken, tmp_path: Path) -> None:
    user = tmp_path / "사용자"
    user.mkdir()
    for each in (*tmp_path.parents[:2], tmp_path):
        each.chmod(each.stat().st_mode | 0o011)
    for source in (taken.backup, taken.passphrase):
        shutil.copy(source, user)
    for path in (user, *user.iterdir()):
        shutil.chown(path, NOBODY, NOBODY)
    backup, passphrase = user / taken.backup.name, user / "passphrase"
    home = user / "home"
    sealed = ("--passphrase-file", str(passphrase))
    done = polar(home, "restore", str(backup), *sealed, wrapper=AS_NOBODY)
    assert done.returncode == 0, done.stdout + done.stderr
    done = polar(home, "backup", str(user / "다시"), wrapper=AS_NOBODY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "secrets in plain text" in done.stdout
    assert {path.stat().st_uid for path in user.rglob("*")} == {NOBODY}
    again = {e.key: e.sha256 for e in Archive(user / "다시").manifest.files if e.key}
    first = {e.key: e.sha256 for e in Archive(taken.backup).manifest.files if e.key}
    assert again == first


# -- services of others -----------------------------------------------------------------------


@pytest.fixture
def external(
    database_url: str, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A service on the session's Postgres and store, as in containers."""
    (tmp_path / "key").write_text("k" * 43)
    variables = {
        "POLAR_DATABASE_URL": database_url,
        "S3_ENDPOINT": s3.endpoint,
        "S3_ACCESS_KEY": s3.access_key,
        "S3_SECRET_KEY": s3.secret_key,
        "S3_BUCKET": s3.bucket,
        "POLAR_SECRET_KEY_FILE": str(tmp_path / "key"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()
    get_engine.cache_clear()
    yield Place.of_environment(os.environ)
    get_engine().dispose()
    get_settings.cache_clear()
    get_engine.cache_clear()


@pytest.mark.sampled
def test_services_that_the_environment_names_are_backed_up(
    external: Place, s3: S3, tmp_path: Path
) -> None:
    content = fill(external)
    names = ("S3_ENDPOINT", "S3_ACCESS_KEY", "S3_SECRET_KEY", "S3_BUCKET")
    variables = {
        name: os.environ[name] for name in (*names, "POLAR_DATABASE_URL", "POLAR_SECRET_KEY_FILE")
    }
    done = polar(tmp_path / "home", "backup", str(tmp_path / "b"), **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"bucket {s3.bucket} of {s3.endpoint}" in done.stdout
    assert "without MLflow's database: set MLFLOW_BACKEND_STORE_URI" in done.stdout
    manifest = Archive(tmp_path / "b").manifest
    assert {e.key for e in manifest.files if e.key} == set(content.objects)
    assert (tmp_path / "b" / "secrets.json").read_text() == '{"key": "' + "k" * 43 + '"}'

    without = {k: v for k, v in variables.items() if k != "POLAR_SECRET_KEY_FILE"}
    done = polar(tmp_path / "home", "backup", str(tmp_path / "c"), **without)
    assert "without the key of the stored secrets" in done.stdout


@pytest.mark.sampled
def test_what_the_store_has_lost_is_told_and_the_backup_stays(
    external: Place, s3: S3, seaweed: SeaweedFS, tmp_path: Path
) -> None:
    content = fill(external)
    lost = next(key for key in content.objects if key.endswith("model/weights"))
    seaweed.client().delete_object(Bucket=s3.bucket, Key=lost)
    names = ("S3_ENDPOINT", "S3_ACCESS_KEY", "S3_SECRET_KEY", "S3_BUCKET", "POLAR_DATABASE_URL")
    done = polar(
        tmp_path / "home", "backup", str(tmp_path / "b"), **{n: os.environ[n] for n in names}
    )
    assert done.returncode == 2
    assert f"{lost} is not in the store" in done.stderr
    defects = Archive(tmp_path / "b").manifest.defects
    assert [(each.key, each.needed) for each in defects] == [(lost, True)]


def test_nothing_is_deleted_while_a_backup_is_taken(external: Place) -> None:
    refuse_while_held()
    with database.hold(external.database_url) as hold:
        with pytest.raises(StoreUnavailable, match="a back-up is being taken"):
            refuse_while_held()
        hold.check()
        with (
            pytest.raises(BackupFailed, match="another back-up is being taken"),
            database.hold(external.database_url, patience="50ms"),
        ):
            pass
    refuse_while_held()


def test_a_hold_that_broke_fails_the_backup(external: Place) -> None:
    with (
        database.hold(external.database_url) as hold,
        database.connect(external.database_url) as other,
    ):
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        with pytest.raises(BackupFailed, match="take the back-up again"):
            hold.check()


def test_the_dump_is_of_the_snapshot(external: Place, tmp_path: Path) -> None:
    """What is written after the snapshot is neither in the dump nor among the references."""
    with database.snapshot(external.database_url) as snapshot:
        with database.connect(external.database_url) as other:
            other.execute("INSERT INTO projects (id, name) VALUES ('prj_late', 'late')")
        said = external.ask(["-m", "app.backups", "references", snapshot.name])
        database.dump(external.database_url, tmp_path / "dump", lambda _: None, snapshot)
    assert "prj_default" in said
    assert "prj_late" not in said
    with database.connect(external.database_url) as other:
        other.execute("CREATE DATABASE restored_dump")
    try:
        url = external.database_url.rpartition("/")[0] + "/restored_dump"
        database.load(url, tmp_path / "dump")
        with database.connect(url) as restored:
            assert restored.execute("SELECT id FROM projects").fetchall() == [("prj_default",)]
    finally:
        with database.connect(external.database_url) as other:
            other.execute("DROP DATABASE restored_dump WITH (FORCE)")


def test_an_unreachable_service_is_named(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    url = f"postgresql+psycopg://polar:hidden-password@127.0.0.1:{port}/polar"
    done = polar(tmp_path / "home", "backup", str(tmp_path / "b"), POLAR_DATABASE_URL=url)
    assert done.returncode == 1
    assert "the database does not answer" in done.stderr
    assert "hidden-password" not in done.stdout + done.stderr
    done = polar(tmp_path / "home", "backup", str(tmp_path / "b"))
    assert (done.returncode, "there is no installation in" in done.stderr) == (1, True)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("before", [700, 2**31 - 5, 3 * 2**32 + 7, 4 * 2**32 - 3])
def test_transactions_are_counted_on(tmp_path: Path, before: int) -> None:
    manifest = Manifest(
        taken_at="2026-11-30T10:00:00Z",
        versions=Versions(polar="0.1.0", postgres=180006, tables="0002"),
        bucket="polar",
        next_transaction=before,
        files=Draft(FolderWriter(tmp_path / "draft"), tmp_path).files,
    )
    server = Postgres(tmp_path / "pg", tmp_path / "secrets" / "pg", free_ports(1)[0])
    server.prepare()
    _go_on_counting(server, manifest)
    command = server.command()
    process = spawn.start(command, tmp_path / "logs" / "postgres.log")
    try:
        wait_ready(server.is_ready, "postgres", timeout=60)
        server.ensure_database("polar")
        with server.connect("polar") as connection:
            connection.execute("CREATE TABLE t AS SELECT generate_series(1, 100) AS n")
            connection.execute("VACUUM FREEZE")
            row = connection.execute(
                "SELECT pg_current_xact_id()::text, count(*) FROM t"
            ).fetchone()
            oldest = connection.execute("SELECT max(age(datfrozenxid)) FROM pg_database").fetchone()
    finally:
        spawn.stop(process, command)
    assert row is not None
    assert int(str(row[0])) > before
    assert row[1] == 100
    assert oldest is not None
    assert int(str(oldest[0])) < 2**31 - 2**22  # far from where Postgres refuses to work


def test_addresses_of_stores_are_read_as_the_service_reads_them() -> None:
    url = "postgresql+psycopg://u:p@127.0.0.1:1/polar?sslmode=disable"
    with pytest.raises(BackupFailed):  # asks the server whether it has MLflow's database
        Place.of_environment({"POLAR_DATABASE_URL": url})
    tracking = {"MLFLOW_BACKEND_STORE_URI": "postgresql+psycopg://u:p@h/m"}
    place = Place.of_environment(
        {"POLAR_DATABASE_URL": url, "POLAR_S3_BUCKET": "b", "S3_ACCESS_KEY": "a", **tracking}
    )
    assert place.store == StoreAddress(None, "a", "", "b", "us-east-1")
    assert place.tracking_url == "postgresql+psycopg://u:p@h/m"
