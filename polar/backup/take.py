"""Takes a back-up while the installation works.

Order is what makes it consistent: hold (nothing is deleted), snapshot of the database, MLflow's
database, then the objects. What the snapshot refers to was in the store before it and stays there
until it is copied; MLflow is never behind what our database knows of it.
"""

import importlib.metadata
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from polar.backup import database, seal
from polar.backup.archive import Draft, drafted
from polar.backup.database import Hold, Snapshot
from polar.backup.errors import BackupFailed
from polar.backup.manifest import (
    DATABASE,
    MODELS,
    OBJECTS,
    SEALED_SECRETS,
    SECRETS,
    SETTINGS,
    TRACKING,
    Defect,
    Entry,
    Manifest,
    Versions,
)
from polar.backup.objects import TRACKING_PREFIX, Bucket, Gone, Item
from polar.backup.places import Place
from polar.backup.references import (
    LONGEST_MANIFEST,
    Reference,
    find_defects,
    manifests_of,
)

Tell = Callable[[str, int, int], None]
"""Called with what is being copied, how many objects of it, and how many bytes so far."""

CHECK_EVERY = 5.0  # seconds between two looks at the hold
LINE_EVERY = 2.0  # seconds between two lines of progress
MIGRATING, PAUSE = 12, 5.0  # how often, and how long after, a dump is tried that a migration broke


@dataclass(frozen=True)
class Taken:
    """A back-up that was taken; `defects` were in the installation before."""

    manifest: Manifest
    size: int

    @property
    def defects(self) -> list[Defect]:
        """What somebody would miss."""
        return [each for each in self.manifest.defects if each.needed]


def take(place: Place, target: Path, passphrase: str | None, tell: Tell) -> Taken:
    """Take a back-up of a place; it appears at `target` when it is whole.

    Raises BackupFailed and OSError; nothing is left at `target` then.
    """
    with drafted(target) as draft, database.hold(place.database_url) as hold:
        taken_at = datetime.now(UTC)
        with database.snapshot(place.database_url) as snapshot:
            references = _references(place, snapshot)
            _dump(draft, place.database_url, DATABASE, tell, snapshot)
        if place.tracking_url:
            _dump(draft, place.tracking_url, TRACKING, tell, None)
        copy = _Copy(draft, Bucket(place.store), hold, manifests_of(references), tell)
        copy.all(references)
        hold.check()
        _secrets(draft, place, passphrase)
        if place.home is not None:
            _folder(draft, place.home.settings_file, place.home.path / MODELS)
        manifest = Manifest(
            taken_at=taken_at,
            versions=_versions(snapshot, tracking=place.tracking_url is not None),
            bucket=place.store.bucket,
            next_transaction=snapshot.next_transaction,
            former_models=[] if place.home is None else place.home.model_places(),
            files=draft.files,
            defects=find_defects(references, copy.copied, copy.manifests),
        )
        draft.finish(manifest)
    return Taken(manifest, sum(entry.size for entry in manifest.files))


def _versions(snapshot: Snapshot, *, tracking: bool) -> Versions:
    return Versions(
        polar=importlib.metadata.version("polar-trainer"),
        postgres=snapshot.version,
        tables=snapshot.tables,
        mlflow=mlflow_version() if tracking else None,
    )


def mlflow_version() -> str | None:
    """Return the version of MLflow that is installed here; None without one."""
    try:
        return importlib.metadata.version("mlflow")
    except importlib.metadata.PackageNotFoundError:
        return None


def _references(place: Place, snapshot: Snapshot) -> list[Reference]:
    lines = place.ask(["-m", "app.backups", "references", snapshot.name]).splitlines()
    return [Reference.model_validate_json(line) for line in lines]


def _dump(draft: Draft, url: str, name: str, tell: Tell, snapshot: Snapshot | None) -> None:
    scratch = draft.scratch / name
    tries = 1 if snapshot else MIGRATING  # MLflow changes its tables when it starts
    for left in reversed(range(tries)):
        try:
            database.dump(url, scratch, lambda size: tell(name, 0, size), snapshot)
            break
        except BackupFailed:
            if not left:
                raise
            time.sleep(PAUSE)
    entry = draft.add_file(name, scratch)
    scratch.unlink()
    tell(name, 1, entry.size)


@dataclass
class _Copy:
    """The objects on their way into the draft."""

    draft: Draft
    bucket: Bucket
    hold: Hold
    wanted: set[str]
    tell: Tell
    copied: dict[str, Entry] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    looked: float = field(default_factory=time.monotonic)

    def all(self, references: list[Reference]) -> None:
        """Copy what lies below the projects and MLflow; what goes meanwhile is passed over."""
        projects = [each.key + "/" for each in references if each.kind == "project"]
        for prefix in (*projects, TRACKING_PREFIX):
            for item in self.bucket.list(prefix):
                self._one(item)
        self.tell(OBJECTS, len(self.copied), self.size)

    def _one(self, item: Item) -> None:
        name = f"{OBJECTS}/{len(self.copied) + 1:08d}"
        blocks: Iterator[bytes] = self._counted(self.bucket.read(item))
        if item.key in self.wanted and item.size <= LONGEST_MANIFEST:
            blocks = self._kept(item.key, blocks)
        try:
            first = next(blocks, b"")
        except Gone:
            return
        self.copied[item.key] = self.draft.add(name, item.size, _joined(first, blocks), item.key)

    def _counted(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.size += len(block)
            if time.monotonic() - self.looked > CHECK_EVERY:
                self.looked = time.monotonic()
                self.hold.check()
            self.tell(OBJECTS, len(self.copied), self.size)
            yield block

    def _kept(self, key: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
        parts = []
        for block in blocks:
            parts.append(block)
            yield block
        self.manifests[key] = b"".join(parts)


def _joined(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _secrets(draft: Draft, place: Place, passphrase: str | None) -> None:
    if place.home is not None:
        values = seal.collect(place.home.secrets)
    elif place.key_file is not None:
        values = {"key": _readable(place.key_file)}
    else:
        return
    if passphrase is None:
        draft.add_bytes(SECRETS, json.dumps(values).encode())
    else:
        draft.add_bytes(SEALED_SECRETS, seal.seal(values, passphrase))


def _readable(key_file: Path) -> str:
    try:
        return key_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BackupFailed(f"POLAR_SECRET_KEY_FILE cannot be read: {error}") from error


def _folder(draft: Draft, settings: Path, models: Path) -> None:
    """Add the settings, and the models that jobs read from the data folder."""
    if settings.exists():
        draft.add_file(SETTINGS, settings)
    for path in sorted(models.rglob("*")):
        if path.is_file() and not path.is_symlink():
            draft.add_file(f"{MODELS}/{path.relative_to(models).as_posix()}", path)


def lines(tell: Callable[[str], None]) -> Tell:
    """Return a `Tell` that makes lines of text, one every two seconds for each thing copied."""
    told: dict[str, float] = {}

    def line(what: str, count: int, size: int) -> None:
        now = time.monotonic()
        if now - told.setdefault(what, now) >= LINE_EVERY:
            told[what] = now
            of = f"{count} files, " if count else ""
            tell(f"{what}: {of}{megabytes(size)}")

    return line


def megabytes(size: int) -> str:
    """Return bytes as people read them."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
