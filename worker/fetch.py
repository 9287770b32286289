"""Brings to this host what a run reads: data, model and prepared rows."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import text

from app.datasets.places import parse, refusal
from app.datasets.service import Located, locate
from app.db import transaction
from app.registry.service import find_version, parse_version
from app.s3 import MISSING, REFUSED, StoreUnavailable, caused_by
from app.settings import Settings
from app.storage import ObjectInfo, Store, join_key
from trainer_core.errors import InvalidSpec, ModelUnavailable
from trainer_core.spec import DataSource, ModelRef, SecretRef, TrainSpec
from worker.blocks import Lent
from worker.holding import hold
from worker.transfer import download_folder, require_room


def prepared_prefix(project_id: str, key: str) -> str:
    """Where prepared data lives in the store."""
    return f"{project_id}/prepared/{key}/"


def attempt_prefix(project_id: str, job_id: str, attempt_id: str) -> str:
    """Where an attempt writes in the store, and nowhere else."""
    return f"{project_id}/jobs/{job_id}/{attempt_id}/"


@dataclass
class Brought:
    """What a run reads its data from: its spec, paths of what was fetched, and what was not, by
    source."""

    spec: TrainSpec
    paths: dict[str, str] = field(default_factory=dict)
    lent: dict[str, Lent] = field(default_factory=dict)
    lends: bool = False


class Fetcher:
    """Fetches for one project into the caches of this host's data folder.

    Every method may raise StoreUnavailable, ObjectMissing, ChecksumMismatch and OSError.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        project_id: str,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._project_id = project_id
        self._secrets = secrets or {}
        self._cache = settings.home / "cache"

    def data(self, spec: TrainSpec, *, lend: bool = False) -> "Brought":
        """Fetch every source that only the service can read; of streams, say where they lie.

        With `lend` that is done of all sources. In its spec registered data sets of the hub are
        named as such: the trainer reads those itself.
        """
        brought = Brought(spec, lends=lend or spec.data.streaming)
        found = {key: self._source(key, source, brought) for key, source in _sources(spec)}
        data = spec.data.model_copy(
            update={"train": [s for key, s in found.items() if key.startswith("train/")]}
        )
        if isinstance(data.validation, list):
            held = [s for key, s in found.items() if key.startswith("validation/")]
            data = data.model_copy(update={"validation": held})
        brought.spec = spec.model_copy(update={"data": data})
        return brought

    def _source(self, key: str, source: DataSource, brought: "Brought") -> DataSource:
        place: str = source.source
        location = source.path
        if place in ("upload", "dataset"):
            with transaction() as session:
                where = locate(session, self._project_id, source.path, source.revision)
            place, location = where.source, where.location
            if place == "upload":
                self._bring_upload(key, where, brought)
            elif place == "hub":
                return source.model_copy(
                    update={"source": "hub", "path": location, "revision": None}
                )
        if place == "s3":
            block, number = key.split("/")
            found = self._found(location, source.token, f"data.{block}[{number}].path")
            if brought.lends:
                brought.lent[key] = found
            else:
                brought.paths[key] = str(self._fetched(location, found))
        return source

    def _bring_upload(self, key: str, where: Located, brought: "Brought") -> None:
        if brought.lends:
            info, name = self._store.info(where.location), where.file_name or "data"
            known = {} if where.sha256 is None else {name: where.sha256}
            brought.lent[key] = Lent(self._store, {name: info}, alone=True, known=known)
        else:
            brought.paths[key] = str(self._upload(where))

    def _upload(self, where: Located) -> Path:
        folder = hold(self._cache / "data" / str(where.sha256))
        path = folder / (where.file_name or "data")
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            require_room(folder, where.size or 0)
            self._store.get_file(where.location, path, size=where.size, sha256=where.sha256)
        return path

    def _found(self, location: str, token: SecretRef | None, field: str) -> Lent:
        """The objects at or below an address that the job may read; raises InvalidSpec."""
        reason = refusal(self._project_id, location, self._settings, with_keys=token is not None)
        if reason is not None:
            raise InvalidSpec(f"{location!r}: {reason}", field)
        bucket, key = parse(location) or ("", "")
        store = self._opened_by(token, field).at(bucket)
        listed = self._listed(store, key, field)
        objects = [o for o in listed if o.key == key or _below(o.key, key)]
        if not objects:
            raise InvalidSpec(f"there is nothing at {location!r}", field)
        named = {join_key(o.key.removeprefix(key).strip("/") or Path(key).name): o for o in objects}
        alone = len(objects) == 1 and objects[0].key == key
        return Lent(store, named, alone=alone)

    def _fetched(self, location: str, found: Lent) -> Path:
        objects = list(found.objects.values())
        version = hashlib.sha256(repr([location, objects]).encode()).hexdigest()
        folder = hold(self._cache / "s3" / version)
        missing = sum(o.size for o in objects) if not folder.exists() else 0
        require_room(self._cache, missing)
        for name, each in found.objects.items():
            path = folder / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                found.store.get_file(each.key, path, size=each.size)
        return folder / next(iter(found.objects)) if found.alone else folder

    def _opened_by(self, token: SecretRef | None, field: str) -> Store:
        """Return the store with the keys in the job's secret, or with the service's own."""
        if token is None:
            return self._store
        access, colon, secret = self._secrets.get(token.secret, "").strip().partition(":")
        if not (access and colon and secret):
            name = field.rpartition(".")[0]
            message = f"the secret {token.secret!r} must hold ACCESS_KEY:SECRET_KEY of the store"
            raise InvalidSpec(message, f"{name}.token")
        return self._store.with_keys(access, secret)

    def _listed(self, store: Store, key: str, field: str) -> list[ObjectInfo]:
        """List a bucket of the user's; one that we cannot read will not be there later either."""
        try:
            return list(store.list_objects(key))
        except StoreUnavailable as error:
            foreign = store.bucket != self._settings.s3_bucket
            if not (foreign and caused_by(error, MISSING | REFUSED | {"NoSuchBucket"})):
                raise
            raise InvalidSpec(
                f"the bucket {store.bucket!r} does not exist, or these keys may not read it: "
                "correct the name, or ask its owner for access",
                field,
            ) from error

    def model(self, ref: ModelRef) -> str | None:
        """Fetch a model that the trainer cannot read itself; None for one that it can."""
        if ref.source == "s3":
            found = self._found(ref.name_or_path, ref.token, "model.name_or_path")
            return str(self._fetched(ref.name_or_path, found))
        if ref.source in ("registry", "job"):
            prefix, sha256 = self._published(ref)
            folder = hold(self._cache / "models" / sha256)
            return str(download_folder(self._store, prefix, folder, sha256))
        return None

    def _published(self, ref: ModelRef) -> tuple[str, str]:
        with transaction() as session:
            if ref.source == "registry":
                number = parse_version(ref.revision) if ref.revision else None
                version = find_version(session, self._project_id, ref.name_or_path, number)
                return version.prefix, version.manifest_sha256
            row = session.execute(
                _MODEL_OF_JOB, {"project_id": self._project_id, "job_id": ref.name_or_path}
            ).first()
        if row is None:
            raise ModelUnavailable(f"job {ref.name_or_path} has published no model", "model")
        return row.prefix, row.manifest_sha256

    def prepared(self, key: str) -> Path:
        """Return the folder of prepared data, fetched unless it is here."""
        folder = hold(self._settings.home / "prepared" / key)
        return download_folder(self._store, prepared_prefix(self._project_id, key), folder)


_MODEL_OF_JOB = text(
    """
    SELECT prefix, manifest_sha256 FROM model_versions
    WHERE project_id = :project_id AND job_id = :job_id AND deleted_at IS NULL
    """
)


def _below(key: str, folder: str) -> bool:
    return key.startswith(folder.rstrip("/") + "/") and not key.endswith("/")


def _sources(spec: TrainSpec) -> Iterator[tuple[str, DataSource]]:
    yield from ((f"train/{i}", source) for i, source in enumerate(spec.data.train))
    if isinstance(spec.data.validation, list):
        yield from ((f"validation/{i}", s) for i, s in enumerate(spec.data.validation))
