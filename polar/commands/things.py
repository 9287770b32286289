"""`polar datasets`, `models`, `artifacts`, `keys`, `secrets`, `targets`: what a service keeps."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from polar.commands.screen import fail
from polar.commands.service import AsJson, Exit, JobId, print_json, read_stdin, service, tell
from polar.commands.tables import print_table, size, when
from polar.sdk.answers import DatasetOut

_SHOWN_VALUE = 80  # characters of a value in a preview
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=200)]


@contextmanager
def files_here(way_out: str) -> Iterator[None]:
    """A file that this machine does not read or write ends the command with the reason."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TimeoutError):  # the service's: `Waited`
            raise
        where = error.filename2 or error.filename
        why = error.strerror or str(error)
        place = f"{where}: " if where else ""
        raise fail(f"{place}{why}: {way_out}") from None


def _group(words: str) -> typer.Typer:
    return typer.Typer(no_args_is_help=True, add_completion=False, help=words)


datasets = _group("Data sets: list, add, show, preview, delete.")
models = _group("Published models: list, versions, show, download, delete.")
artifacts = _group("What a job keeps: list and download.")
keys = _group("API keys: list, create, revoke.")
secrets = _group("Secrets that specs name: list, set, delete; values are never shown.")


@datasets.command("list")
def list_datasets(
    name: Annotated[str, typer.Option(help="All versions of this one.")] = "",
    limit: Limit = 20,
    *,
    as_json: AsJson = False,
) -> None:
    """List data sets, newest first."""
    with service() as client:
        found = client.datasets.page(name=name or None, limit=limit).items
    if as_json:
        print_json(found)
        return
    rows = (
        (d.id, d.name, d.version, d.source, d.row_format, d.rows, size(d.size), when(d.created_at))
        for d in found
    )
    columns = ("id", "name", "version", "source", "format", "rows", "size", "created")
    print_table(columns, rows)


@datasets.command("add")
def add_dataset(
    place: Annotated[
        str, typer.Argument(help="A file; or hub:org/name or s3://bucket/key, read where it lies.")
    ],
    name: Annotated[str, typer.Option(help="Its name; the file's without.")] = "",
    resume: Annotated[str, typer.Option(help="An upload that broke off: go on with it.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Upload a file, or register a place; print the data set's id."""
    source, _, rest = place.partition(":")
    with service() as client, files_here(f"{place} cannot be read, give another file"):
        if source == "hub" or place.startswith("s3://"):
            location = rest if source == "hub" else place
            label = name or location.rpartition("/")[2]
            made = client.datasets.register(label, source, location)
        elif not Path(place).is_file():
            raise fail(f"{place} is no file, and neither hub:org/name nor s3://…", Exit.USAGE)
        elif resume:
            done = client.uploads.send(resume, place)
            made = client.datasets.get(str(done.dataset_id))
        else:
            made = client.datasets.upload(place, name or None)
    if as_json:
        print_json(made)
        return
    print(made.id)
    _print_problems(made)


@datasets.command("show")
def show_dataset(dataset_id: str, *, as_json: AsJson = False) -> None:
    """Say what is known of a data set."""
    with service() as client:
        found = client.datasets.get(dataset_id)
    if as_json:
        print_json(found)
        return
    facts = (
        ("name", f"{found.name}, version {found.version}"),
        ("format", f"{found.file_format}, {found.row_format}"),
        ("rows", found.rows),
        ("columns", ", ".join(found.columns or [])),
        ("size", size(found.size)),
        ("sha256", found.sha256),
        ("location", found.location),
    )
    print_table((found.id, ""), facts)
    _print_problems(found)


def _print_problems(found: DatasetOut) -> None:
    for problem in found.problems:
        place = "" if problem.line is None else f"line {problem.line}: "
        print(f"warning: {place}{problem.message}", file=sys.stderr)


@datasets.command("preview")
def preview_dataset(
    dataset_id: str,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100)] = 5,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the first rows as they are in the file."""
    with service() as client:
        found = client.datasets.preview(dataset_id, limit=limit)
    if as_json:
        print_json(found)
        return
    rows = (
        (row.line, name, str(value)[:_SHOWN_VALUE])
        for row in found.rows
        for name, value in row.values.items()
    )
    print_table(("line", "column", "value"), rows)
    if found.note:
        print(found.note)


@datasets.command("delete")
def delete_dataset(dataset_id: str, *, as_json: AsJson = False) -> None:
    """Delete a data set and its file."""
    with service() as client:
        client.datasets.delete(dataset_id)
    tell(f"{dataset_id}: deleted", as_json=as_json, id=dataset_id, deleted=True)


@datasets.command("uploads")
def list_uploads(*, as_json: AsJson = False) -> None:
    """List uploads that are not finished; `add --resume` goes on with one."""
    with service() as client:
        found = client.uploads.page().items
    if as_json:
        print_json(found)
        return
    rows = ((u.id, u.file_name, u.status, f"{size(u.offset)} of {size(u.length)}") for u in found)
    print_table(("id", "file", "status", "arrived"), rows)


@datasets.command("forget-upload")
def forget_upload(upload_id: str, *, as_json: AsJson = False) -> None:
    """Give an upload up that is not finished."""
    with service() as client:
        client.uploads.delete(upload_id)
    tell(f"{upload_id}: given up", as_json=as_json, id=upload_id, deleted=True)


@models.command("list")
def list_models(limit: Limit = 50, *, as_json: AsJson = False) -> None:
    """List published models by name."""
    with service() as client:
        found = client.models.page(limit=limit).items
    if as_json:
        print_json(found)
        return
    rows = ((m.name, m.versions, m.newest.kind, m.newest.base_model) for m in found)
    print_table(("name", "versions", "kind", "base"), rows)


@models.command("versions")
def list_versions(name: str, limit: Limit = 50, *, as_json: AsJson = False) -> None:
    """List a model's versions, newest first."""
    with service() as client:
        found = client.models.version_page(name, limit=limit).items
    if as_json:
        print_json(found)
        return
    rows = (
        (v.version, v.kind, v.base_model, size(v.size), v.job_id, when(v.created_at)) for v in found
    )
    print_table(("version", "kind", "base", "size", "job", "created"), rows)


@models.command("show")
def show_version(name: str, version: int, *, as_json: AsJson = False) -> None:
    """List the files of a version."""
    with service() as client:
        found = client.models.get(name, version)
    if as_json:
        print_json(found)
        return
    print_table(("file", "size", "sha256"), ((f.path, size(f.size), f.sha256) for f in found.files))


@models.command("download")
def download_model(
    name: str,
    version: Annotated[int, typer.Option(help="The newest without.")] = 0,
    to: Annotated[
        Path | None, typer.Option(help="A folder, or a file NAME.tar; NAME-vVERSION without.")
    ] = None,
    file: Annotated[str, typer.Option(help="Only this file of it.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Download a model, each file checked by its sha256."""
    with service() as client, files_here("choose another place with --to"):
        number = version or client.models.version_page(name, limit=1).items[0].version
        target = to or Path(f"{name}-v{number}")
        if file:
            client.models.download(name, number, file, target / file)
        elif target.suffix == ".tar":
            client.models.download_archive(name, number, target)
        else:
            client.models.download_folder(name, number, target)
    tell(str(target), as_json=as_json, name=name, version=number, path=str(target))


@models.command("delete")
def delete_version(name: str, version: int, *, as_json: AsJson = False) -> None:
    """Delete a version of a model."""
    with service() as client:
        client.models.delete(name, version)
    words = f"{name} version {version}: deleted"
    tell(words, as_json=as_json, name=name, version=version, deleted=True)


@artifacts.command("list")
def list_artifacts(job_id: JobId, *, as_json: AsJson = False) -> None:
    """List the files that a job keeps."""
    with service() as client:
        found = client.jobs.artifacts(job_id)
    if as_json:
        print_json(found)
        return
    print_table(
        ("path", "kind", "size", "sha256"),
        ((a.path, a.kind, size(a.size), a.sha256) for a in found),
    )


@artifacts.command("download")
def download_artifacts(
    job_id: JobId,
    path: Annotated[str, typer.Argument(help="One file; all as a tar file without.")] = "",
    to: Annotated[Path | None, typer.Option(help="Where to.")] = None,
    kind: Annotated[str, typer.Option(help="Only this kind, such as model.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Download one file, checked by its sha256, or all as one tar file."""
    with service() as client, files_here("choose another place with --to"):
        if path:
            target = client.jobs.download(job_id, path, to or Path(path).name)
        else:
            target = to or Path(f"{job_id}.tar")
            client.jobs.download_archive(job_id, target, kind=kind or None)
    tell(str(target), as_json=as_json, id=job_id, path=str(target))


@keys.command("list")
def list_keys(*, as_json: AsJson = False) -> None:
    """List the project's keys, without their secret part."""
    with service() as client:
        found = client.keys.list()
    if as_json:
        print_json(found)
        return
    rows = ((k.id, k.name, k.role, k.prefix, when(k.last_used_at)) for k in found)
    print_table(("id", "name", "role", "prefix", "last used"), rows)


@keys.command("create")
def create_key(
    name: str,
    role: Annotated[str, typer.Option(help="viewer, submitter, operator or admin.")] = "submitter",
    *,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it; it is shown this once."""
    with service() as client:
        made = client.keys.create(name, role=role)
    if as_json:
        print_json(made)
    else:
        print(made.key)


@keys.command("revoke")
def revoke_key(key_id: str, *, as_json: AsJson = False) -> None:
    """Revoke a key."""
    with service() as client:
        client.keys.delete(key_id)
    tell(f"{key_id}: revoked", as_json=as_json, id=key_id, revoked=True)


@secrets.command("list")
def list_secrets(*, as_json: AsJson = False) -> None:
    """List the names of secrets."""
    with service() as client:
        found = client.secrets.list()
    if as_json:
        print_json(found)
        return
    print_table(("name", "updated"), ((s.name, when(s.updated_at)) for s in found))


@secrets.command("set")
def set_secret(name: str, *, as_json: AsJson = False) -> None:
    """Store a secret; its value comes from standard input, or is asked for."""
    # Never an argument: those are seen by every user of a machine, and kept by shells.
    value = typer.prompt(name, hide_input=True) if sys.stdin.isatty() else read_stdin()
    with service() as client:
        client.secrets.put(name, value.rstrip("\n"))
    tell(f"{name}: stored", as_json=as_json, name=name, stored=True)


@secrets.command("delete")
def delete_secret(name: str, *, as_json: AsJson = False) -> None:
    """Delete a secret."""
    with service() as client:
        client.secrets.delete(name)
    tell(f"{name}: deleted", as_json=as_json, name=name, deleted=True)


def targets(*, as_json: AsJson = False) -> None:
    """List the places where jobs run, with their hosts."""
    with service() as client:
        found = client.targets.list()
    if as_json:
        print_json(found)
        return
    rows = (
        (
            t.name,
            t.queued,
            t.running,
            w.hostname,
            w.id,
            len(w.devices),
            _state(w.online, w.draining),
        )
        for t in found
        for w in t.workers
        if w.kind == "host"
    )
    print_table(("target", "queued", "running", "host", "id", "devices", "state"), rows)


def _state(online: bool, draining: bool) -> str:  # noqa: FBT001 - two facts of a host
    return "offline" if not online else "draining" if draining else "online"


def capabilities(
    task: Annotated[str, typer.Argument(help="Only this task type.")] = "",
    *,
    refused: Annotated[bool, typer.Option(help="What does not work, too, and why.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what can be combined in a job."""
    with service() as client:
        found = client.service.capabilities()
    if as_json:
        print_json(found)
        return
    rows = (
        (c.task, c.backend, c.adapter, c.quantization, c.strategy, c.reason)
        for c in found.combinations
        if (c.supported or refused) and c.task in (task or c.task)
    )
    print_table(("task", "backend", "adapter", "quantization", "processes", "refused"), rows)
