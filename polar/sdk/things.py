"""What a service keeps beside jobs: data sets, uploads, models, plans, keys, secrets, targets."""

from collections.abc import Sequence
from pathlib import Path

from polar.sdk import answers, files
from polar.sdk.calls import LONG_TIMEOUT, Call, Course, Work, nothing, part, path_of, text_of
from polar.sdk.jobs import Spec, body_of
from polar.sdk.listening import PATIENCE, Listener
from polar.sdk.operations import D, PathLike, Resource, operation, pages, stream
from polar.sdk.reading import as_, items_of


class Datasets(Resource[D]):
    """`/datasets`."""

    @operation
    def upload(self, file: PathLike, name: str | None = None) -> Course[answers.DatasetOut]:
        """Upload a file and return its data set; it goes on where a connection broke.

        Raises Invalid with the lines that cannot be read.
        """
        return _upload(Path(file), name)

    @operation
    def register(self, name: str, source: str, location: str) -> Call[answers.DatasetOut]:
        """Register data that stay where they are: `source` is hub or s3."""
        body = {"name": name, "source": source, "location": location}
        read = as_(answers.DatasetOut)
        return Call(method="POST", path="/datasets", json=body, read=read, timeout=LONG_TIMEOUT)

    @operation
    def get(self, dataset_id: str) -> Call[answers.DatasetOut]:
        """Return format, columns, rows and problems of a data set."""
        path = f"/datasets/{part(dataset_id)}"
        return Call(method="GET", path=path, read=as_(answers.DatasetOut))

    @operation
    def page(
        self, *, name: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Call[answers.DatasetPage]:
        """Return a page of data sets, newest first; `name`: all versions of this one."""
        query = {"name": name, "limit": limit, "cursor": cursor}
        return Call(method="GET", path="/datasets", query=query, read=as_(answers.DatasetPage))

    list = pages(page.describe)

    @operation
    def preview(self, dataset_id: str, *, limit: int | None = None) -> Call[answers.Preview]:
        """Return the first rows as they are in the file; long values are cut."""
        path, query = f"/datasets/{part(dataset_id)}/preview", {"limit": limit}
        return Call(method="GET", path=path, query=query, read=as_(answers.Preview))

    @operation
    def delete(self, dataset_id: str) -> Call[None]:
        """Delete a version and its file."""
        return Call(method="DELETE", path=f"/datasets/{part(dataset_id)}", read=nothing)


_MANIFEST = "manifest.json"


def _begin(file: Path, name: str | None) -> Course[answers.UploadOut]:
    digest: str = yield Work(lambda: files.checksum(file))
    announced = files.begin_upload(name or file.stem, file.name, file.stat().st_size, digest)
    return (yield from announced)


def _upload(file: Path, name: str | None) -> Course[answers.DatasetOut]:
    begun = yield from _begin(file, name)
    done = yield from files.send_upload(begun, file)
    return (
        yield from Call(
            method="GET",
            path=f"/datasets/{part(str(done.dataset_id))}",
            read=as_(answers.DatasetOut),
        )
    )


class Uploads(Resource[D]):
    """`/uploads`: data sets in pieces, by tus 1.0. `Datasets.upload` does all of it."""

    @operation
    def begin(self, file: PathLike, name: str | None = None) -> Course[answers.UploadOut]:
        """Announce a file; `send` sends it, from this process or a later one."""
        return _begin(Path(file), name)

    @operation
    def send(self, upload_id: str, file: PathLike) -> Course[answers.UploadOut]:
        """Send what is missing of an upload; returns it with the id of its data set."""
        return _send(upload_id, Path(file))

    @operation
    def send_piece(self, upload_id: str, offset: int, content: bytes) -> Call[int]:
        """Send bytes from `offset` on; returns how many are there now."""
        return files.send_piece(upload_id, offset, content)

    @operation
    def get(self, upload_id: str) -> Call[answers.UploadOut]:
        """Return where an upload stands."""
        return files.get_upload(upload_id)

    @operation
    def page(
        self,
        *,
        status: Sequence[str] | str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Call[answers.UploadPage]:
        """Return a page of uploads, newest first: those that are not finished, or `status`."""
        query = {"status": status, "limit": limit, "cursor": cursor}
        return Call(method="GET", path="/uploads", query=query, read=as_(answers.UploadPage))

    list = pages(page.describe)

    @operation
    def delete(self, upload_id: str) -> Call[None]:
        """Give an upload up."""
        return Call(method="DELETE", path=f"/uploads/{part(upload_id)}", read=nothing)


def _send(upload_id: str, file: Path) -> Course[answers.UploadOut]:
    found = yield from files.get_upload(upload_id)
    return (yield from files.send_upload(found, file))


def _version(name: str, version: int) -> str:
    return f"/models/{part(name)}/versions/{part(version)}"


class Models(Resource[D]):
    """`/models`: what finished jobs published."""

    @operation
    def page(
        self, *, limit: int | None = None, cursor: str | None = None
    ) -> Call[answers.ModelPage]:
        """Return a page of models by name, each with its newest version."""
        query = {"limit": limit, "cursor": cursor}
        return Call(method="GET", path="/models", query=query, read=as_(answers.ModelPage))

    list = pages(page.describe)

    @operation
    def version_page(
        self, name: str, *, limit: int | None = None, cursor: str | None = None
    ) -> Call[answers.VersionPage]:
        """Return a page of a model's versions, newest first."""
        query, path = {"limit": limit, "cursor": cursor}, f"/models/{part(name)}/versions"
        return Call(method="GET", path=path, query=query, read=as_(answers.VersionPage))

    versions = pages(version_page.describe)

    @operation
    def get(self, name: str, version: int) -> Call[answers.VersionDetail]:
        """Return a version with its files."""
        return Call(method="GET", path=_version(name, version), read=as_(answers.VersionDetail))

    @operation
    def download(self, name: str, version: int, path: str, target: PathLike) -> Course[Path]:
        """Download one file of a version; `target` appears only when its sha256 is right."""
        return files.download(f"{_version(name, version)}/files/{path_of(path)}", Path(target))

    @operation
    def download_archive(self, name: str, version: int, target: PathLike) -> Course[Path]:
        """Download a version as one tar file."""
        return files.download_archive(f"{_version(name, version)}/files.tar", Path(target))

    @operation
    def download_folder(self, name: str, version: int, folder: PathLike) -> Course[Path]:
        """Download a version into a folder, each file checked by its sha256, its manifest last."""
        return _folder(name, version, Path(folder))

    @operation
    def delete(self, name: str, version: int) -> Call[None]:
        """Delete a version."""
        return Call(method="DELETE", path=_version(name, version), read=nothing)


def _folder(name: str, version: int, folder: Path) -> Course[Path]:
    read = as_(answers.VersionDetail)
    found = yield from Call(method="GET", path=_version(name, version), read=read)
    for file in found.files:
        path = f"{_version(name, version)}/files/{path_of(file.path)}"
        yield from files.download(path, files.inside(folder, file.path), file.sha256)
    # Last, as everywhere: a folder with a manifest is whole.
    manifest = f"{_version(name, version)}/files/{_MANIFEST}"
    yield from files.download(manifest, folder / _MANIFEST, found.manifest_sha256)
    return folder


class Plans(Resource[D]):
    """`/plans`: what a job will do and need."""

    @operation
    def create(self, spec: Spec) -> Call[answers.PlanOut]:
        """Plan a JobSpec; the same spec on the same data gets the same plan."""
        read, body = as_(answers.PlanOut), body_of(spec)
        return Call(method="POST", path="/plans", json=body, again=True, read=read)

    @operation
    def get(self, plan_id: str) -> Call[answers.PlanOut]:
        """Return a plan as it is now."""
        return Call(method="GET", path=f"/plans/{part(plan_id)}", read=as_(answers.PlanOut))

    @operation
    def preview(self, spec: Spec, *, samples: int = 5) -> Call[answers.PreviewOut]:
        """Return the first samples of a JobSpec, token by token."""
        body, read = {"spec": body_of(spec), "samples": samples}, as_(answers.PreviewOut)
        return Call(method="POST", path="/plans/preview", json=body, again=True, read=read)


class Keys(Resource[D]):
    """`/api-keys`."""

    @operation
    def list(self) -> Call[Sequence[answers.KeyOut]]:
        """Return the project's keys, without their secret part."""
        return Call(
            method="GET", path="/api-keys", read=items_of(answers.KeyList, lambda page: page.items)
        )

    @operation
    def create(self, name: str, *, role: str = "submitter") -> Call[answers.CreatedKey]:
        """Make a key: viewer, submitter, operator or admin; `key` is in this answer only."""
        body, read = {"name": name, "role": role}, as_(answers.CreatedKey)
        return Call(method="POST", path="/api-keys", json=body, read=read)

    @operation
    def delete(self, key_id: str) -> Call[None]:
        """Revoke a key."""
        return Call(method="DELETE", path=f"/api-keys/{part(key_id)}", read=nothing)


class Secrets(Resource[D]):
    """`/secrets`: write-only values that specs name."""

    @operation
    def list(self) -> Call[Sequence[answers.SecretOut]]:
        """Return the project's secrets, without their values."""
        return Call(
            method="GET",
            path="/secrets",
            read=items_of(answers.SecretList, lambda page: page.items),
        )

    @operation
    def create(self, name: str, value: str) -> Call[answers.SecretOut]:
        """Store a secret; the same as `put`."""
        body, read = {"name": name, "value": value}, as_(answers.SecretOut)
        return Call(method="POST", path="/secrets", json=body, again=True, read=read)

    @operation
    def put(self, name: str, value: str) -> Call[answers.SecretOut]:
        """Store a secret, new or in place of the one that is there."""
        path, read = f"/secrets/{part(name)}", as_(answers.SecretOut)
        return Call(method="PUT", path=path, json={"value": value}, read=read)

    @operation
    def delete(self, name: str) -> Call[None]:
        """Delete a secret."""
        return Call(method="DELETE", path=f"/secrets/{part(name)}", read=nothing)


def _drain(host: str) -> str:
    return f"/targets/local/workers/{part(host)}/drain"


class Targets(Resource[D]):
    """`/targets`: where jobs run."""

    @operation
    def list(self) -> Call[Sequence[answers.TargetOut]]:
        """Return the places where jobs can run, with their hosts and devices."""
        return Call(
            method="GET",
            path="/targets",
            read=items_of(answers.TargetList, lambda page: page.items),
        )

    @operation
    def drain(self, host: str, *, now: bool = False) -> Call[answers.WorkerOut]:
        """Give a host no more attempts; with `now` have its attempts go on elsewhere."""
        read, body = as_(answers.WorkerOut), {"now": now}
        return Call(method="POST", path=_drain(host), json=body, again=True, read=read)

    @operation
    def undrain(self, host: str) -> Call[answers.WorkerOut]:
        """Let a host get attempts again."""
        return Call(method="DELETE", path=_drain(host), read=as_(answers.WorkerOut))


class Events(Resource[D]):
    """`/events`: what happens to all jobs of the project, in one order."""

    @stream
    def follow(
        self,
        *,
        after: str | None = None,
        types: str | None = None,
        patience: float = PATIENCE,
    ) -> Listener:
        """Yield what happens from now on, or after an id; it has no end.

        A frame `resync` says that events of jobs that ended long ago are not here any more: read
        them from each job's own events. Raises Unreachable after `patience` seconds of silence.
        """
        return Listener("/events", after=after, types=types, patience=patience, ordered=False)

    @operation
    def list(
        self, *, after: str | None = None, types: str | None = None, limit: int | None = None
    ) -> Call[answers.EventPage]:
        """Return a page of events after an id; from the start without."""
        query = {"after": after, "types": types, "limit": limit}
        return Call(method="GET", path="/events", query=query, read=as_(answers.EventPage))

    @operation
    def ticket(self, job_id: str | None = None) -> Call[answers.Ticket]:
        """Return a ticket for one connection of a browser to a job's stream, or to that of all."""
        body = {} if job_id is None else {"job_id": job_id}
        return Call(method="POST", path="/stream-tickets", json=body, read=as_(answers.Ticket))


class Service(Resource[D]):
    """The service itself."""

    @operation
    def capabilities(self) -> Call[answers.CapabilitiesOut]:
        """Return what can be combined, what not and why, and the schemas of specs."""
        return Call(method="GET", path="/capabilities", read=as_(answers.CapabilitiesOut))

    @operation
    def health(self) -> Call[answers.Liveness]:
        """Say whether the API lives."""
        return Call(method="GET", path="/healthz", read=as_(answers.Liveness))

    @operation
    def ready(self) -> Call[answers.Readiness]:
        """Say whether jobs can be taken; raises ServerError with what is missing."""
        return Call(method="GET", path="/readyz", read=as_(answers.Readiness))

    @operation
    def metrics(self) -> Call[str]:
        """Return the service's gauges and counters, as Prometheus reads them."""
        return Call(method="GET", path="/metrics", read=text_of)

    @operation
    def open_session(self) -> Call[str]:
        """Return the `Set-Cookie` that keeps the key in a browser."""
        return Call(
            method="POST",
            path="/session",
            again=True,
            read=lambda answer: answer.headers.get("Set-Cookie", ""),
        )

    @operation
    def close_session(self) -> Call[str]:
        """Return the `Set-Cookie` that has a browser forget the key."""
        return Call(
            method="DELETE",
            path="/session",
            read=lambda answer: answer.headers.get("Set-Cookie", ""),
        )
