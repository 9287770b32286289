"""Restores a back-up into an empty folder, whole or not at all.

Everything is laid below `<home>/.restoring` and moved up at the end; a stack does not start on a
folder in which that is left.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from polar.backup import database, seal
from polar.backup.archive import Archive, remove, sync_folder
from polar.backup.errors import BackupFailed, Damaged
from polar.backup.manifest import (
    DATABASE,
    MODELS,
    OBJECTS,
    SEALED_SECRETS,
    SECRETS,
    SETTINGS,
    TRACKING,
    Entry,
    Manifest,
)
from polar.backup.objects import Bucket
from polar.backup.places import Place, contains, services
from polar.backup.take import Tell, mlflow_version
from polar.stack.home import Home, in_use
from polar.stack.private import write_private
from polar.stack.processes import Stack
from polar.stack.services import Postgres, postgres_binaries

_PAGE = 2**20  # transactions whose states lie in one file: a new one begins where the next does
_HALF, _EPOCH = 2**31, 2**32
_NAMED = 10  # damaged files that are listed by name


def check(archive: Archive, tell: Tell) -> None:
    """Read every file of a back-up; raises Damaged and names those that are not whole."""
    wrong: list[str] = []
    size = 0
    for count, entry in enumerate(archive.manifest.files, start=1):
        problem = archive.check(entry)
        if problem:
            wrong.append(problem)
        size += entry.size
        tell("checked", count, size)
    if wrong:
        more = f"\n  … and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise Damaged(
            "the back-up is damaged:" + "".join(f"\n  {w}" for w in wrong[:_NAMED]) + more
        )


def refuse_other_versions(manifest: Manifest) -> None:
    """Raise BackupFailed for a back-up of a version that this one cannot read."""
    ours, theirs = importlib.metadata.version("polar-trainer"), manifest.versions.polar
    if _major(ours) != _major(theirs):
        raise BackupFailed(
            f"the back-up was taken by version {theirs}, this is {ours}: restore it with "
            f"{theirs}, then upgrade step by step (docs/operations.md, Upgrade)"
        )
    installed, needed = mlflow_version(), manifest.versions.mlflow
    if needed and installed and _major(installed) < _major(needed):
        raise BackupFailed(f"the back-up needs MLflow {needed}, {installed} is installed")


def _major(version: str) -> tuple[int, ...]:
    """The part that must agree: before 1.0 a minor version may change everything."""
    numbers = [int(part) for part in version.split(".")[:2]]
    return tuple(numbers[:1] if numbers[0] else numbers)


@contextmanager
def alone(home: Home, source: Path) -> Iterator[None]:
    """Hold an empty or absent folder for a restore; nothing else of ours begins to fill it.

    It is left as it was, but for what `restore` has put into it. What a killed restore left of its
    draft is removed. Raises BackupFailed for any other folder, and AlreadyRunning.
    """
    if contains(source, home.path):
        raise BackupFailed(f"{home.path} is in the back-up itself: name another folder with --home")
    if who := home.holder():
        raise BackupFailed(in_use(home.path, who))
    _refuse_filled(home)
    existed = home.path.exists()
    try:
        home.run.mkdir(parents=True, exist_ok=True, mode=0o700)
        with home.claimed("polar restore", restoring=True):
            _refuse_filled(home)  # again: from now on it stays so
            remove(home.restoring)
            try:
                yield
            finally:
                home.lock.unlink(missing_ok=True)  # while it is held
    finally:
        with suppress(OSError):  # someone else's by now, or restored
            home.run.rmdir()
            if not existed:
                home.path.rmdir()


def _refuse_filled(home: Home) -> None:
    """Raise BackupFailed unless the folder is empty, absent, or holds a killed restore's draft."""
    if not home.path.exists():
        return
    names = {path.name for path in home.path.iterdir()} if home.path.is_dir() else {home.path.name}
    if home.run.is_dir() and {path.name for path in home.run.iterdir()} <= {home.lock.name}:
        names.discard(home.run.name)
    if home.restoring.name in names and len(names) > 1:
        raise BackupFailed(
            f"an earlier restore into {home.path} did not end: delete that folder and restore again"
        )
    if names - {home.restoring.name}:
        raise BackupFailed(f"{home.path} is not empty; name a new or an empty folder with --home")


def restore(archive: Archive, home: Home, passphrase: str | None, tell: Tell) -> int:
    """Restore a back-up that was checked; returns how many attempts will be taken up again.

    Call it only while the folder is held by `alone`. Raises BackupFailed and OSError; the folder is
    then as it was.
    """
    draft = Home(home.restoring)
    draft.path.mkdir(mode=0o700)
    moved: list[Path] = []
    try:
        seal.lay(_secrets(archive, passphrase), draft.secrets)
        _folder(archive, draft)
        live = _load(archive, draft, tell)
        for name in ("run", "logs"):
            shutil.rmtree(draft.path / name)
        _move_up(draft.path, home.path, moved)
        sync_folder(home.path)
        home.path.chmod(0o700)
        draft.path.rmdir()
    except BaseException:
        for path in (*moved, draft.path):
            remove(path)
        raise
    return live


def _move_up(draft: Path, home: Path, moved: list[Path]) -> None:
    """Move what is restored to where it belongs; `moved` says what was, however it ends."""
    for path in sorted(draft.iterdir()):
        place = home / path.name
        if place.exists():
            raise BackupFailed(f"{place} has come into the folder meanwhile")
        moved.append(place)
        path.rename(place)


def _secrets(archive: Archive, passphrase: str | None) -> dict[str, str]:
    """Return the secrets; none of a service whose key file was not named."""
    if sealed := archive.manifest.find(SEALED_SECRETS):
        if passphrase is None:
            raise BackupFailed("the secrets are sealed: name their passphrase, --passphrase-file")
        return seal.unseal(b"".join(archive.read(sealed)), passphrase)
    plain = archive.manifest.find(SECRETS)
    values: dict[str, str] = json.loads(b"".join(archive.read(plain))) if plain else {}
    return values


def _folder(archive: Archive, draft: Home) -> None:
    for entry in archive.manifest.files:
        if entry.file == SETTINGS or entry.file.startswith(f"{MODELS}/"):
            _lay(archive, entry, draft.path / _inside(entry.file))
    if archive.manifest.former_models:
        write_private(draft.former_models_file, json.dumps(archive.manifest.former_models))


def _inside(name: str) -> str:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or not parts:
        raise BackupFailed(f"{name!r} leads out of the folder; the back-up is not one of ours")
    return name


def _lay(archive: Archive, entry: Entry, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for block in archive.read(entry):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _load(archive: Archive, draft: Home, tell: Tell) -> int:
    manifest = archive.manifest
    with services(draft, lambda server: _go_on_counting(server, manifest)) as stack:
        server = stack.postgres
        _refuse_newer_server(server, manifest)
        _database(archive, DATABASE, draft, server, "polar")
        place = Place.of_stack(stack)
        place.ask(["-m", "app", "migrate"])
        live = int(place.ask(["-m", "app.backups", "settle"]))
        tell(DATABASE, 0, 0)
        if manifest.find(TRACKING):
            _database(archive, TRACKING, draft, server, "mlflow")
        _objects(archive, stack, place, tell)
    return live


def _go_on_counting(server: Postgres, manifest: Manifest) -> None:
    """Have a fresh cluster count transactions from where the former one was.

    Positions in the stream of all events are transaction ids: they must not begin again.
    """
    epoch, low = divmod(manifest.next_transaction, _EPOCH)
    low = (low // _PAGE + 1) * _PAGE
    if low >= _HALF - _PAGE:  # farther from the cluster's oldest than ids may be: the next round
        epoch, low = epoch + 1, _PAGE
    _as_server(server, "pg_resetwal", ["-e", str(epoch), "-x", str(low)])


def _as_server(server: Postgres, name: str, options: Sequence[str]) -> None:
    done = subprocess.run(
        [*server.wrapper, str(postgres_binaries() / name), "-D", str(server.data), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise BackupFailed(f"{name} failed: {done.stderr.strip()}")


def _refuse_newer_server(server: Postgres, manifest: Manifest) -> None:
    with server.connect() as connection:
        row = connection.execute("SHOW server_version_num").fetchone()
    ours, theirs = int(str(row[0])) // 10_000 if row else 0, manifest.versions.postgres // 10_000
    if theirs > ours:
        raise BackupFailed(f"the back-up is of Postgres {theirs}, {ours} is installed here")


def _database(archive: Archive, file: str, draft: Home, server: Postgres, name: str) -> None:
    entry = archive.manifest.find(file)
    if entry is None:
        raise Damaged(f"{file} is missing")
    scratch = draft.path / "run" / file
    _lay(archive, entry, scratch)
    server.ensure_database(name)
    database.load(server.url(name), scratch)
    with database.connect(server.url(name)) as connection:
        connection.execute("ANALYZE")
    scratch.unlink()


def _objects(archive: Archive, stack: Stack, place: Place, tell: Tell) -> None:
    bucket = Bucket(place.store)
    wanted = {e.key: e for e in archive.manifest.files if e.key is not None}
    size = 0
    for count, (key, entry) in enumerate(wanted.items(), start=1):
        bucket.write(key, archive.read(entry))
        size += entry.size
        tell(OBJECTS, count, size)
    prefixes = {key.partition("/")[0] + "/" for key in wanted}
    found = {item.key: item.size for prefix in prefixes for item in bucket.list(prefix)}
    wrong = [key for key, entry in wanted.items() if found.get(key) != entry.size]
    if wrong:
        raise BackupFailed(f"the object store of {stack.home.path} lost {wrong[0]}")
