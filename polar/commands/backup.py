"""`polar backup` and `polar restore`: an installation in a file or folder, and out of it again."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer
from rich.markup import escape

from polar.backup import seal
from polar.backup.archive import Archive, is_there
from polar.backup.errors import BackupFailed
from polar.backup.manifest import SEALED_SECRETS, SECRETS, Manifest
from polar.backup.places import Place, installation, refuse_nested
from polar.backup.restore import alone, check, refuse_other_versions
from polar.backup.restore import restore as restore_archive
from polar.backup.take import Taken, lines, megabytes, take
from polar.commands.ending import Ended, ended, told_to_end
from polar.commands.screen import fail, keep_stdout, out
from polar.commands.service import AsJson, print_json
from polar.stack.home import Home, Unusable, default_home
from polar.stack.services import ServiceFailed

_FAILURES = (BackupFailed, ServiceFailed, Unusable, OSError, psycopg.Error)
_SHOWN = 10
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        readable=False,  # our own words say why it cannot be read
        help="A file with the passphrase that the secrets are sealed with.",
    ),
]


def backup(
    target: Annotated[Path, typer.Argument(help="A new folder, or a new file NAME.tar.")],
    passphrase_file: PassphraseFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Take a back-up of this installation while it works: database, objects, MLflow, secrets.

    Without a running stack the database and the store are started for it. With POLAR_DATABASE_URL
    and the S3 variables in the environment, the services that they name are backed up instead.
    """
    if as_json:
        keep_stdout()
    began = time.monotonic()
    home = Home(default_home())
    try:
        refuse_nested(target, home.path)
        passphrase = seal.read_passphrase(passphrase_file) if passphrase_file else None
        with told_to_end(), installation(home) as place:
            out.print(_source(place))
            taken = take(place, target, passphrase, lines(_show))
    except _FAILURES as failure:
        raise fail(str(failure)) from None
    except Ended as end:
        left = f"the back-up at {target} is whole" if is_there(target) else "nothing was written"
        raise ended(end, left) from None
    if as_json:
        defects = [each.model_dump() for each in taken.defects]
        there = {"path": str(target), "bytes": taken.size}
        print_json({**there, **_counted(taken.manifest), "defects": defects})
    _tell(taken, target, time.monotonic() - began)


def _source(place: Place) -> str:
    if place.home is not None:
        return f"back-up of [bold]{escape(str(place.home.path))}[/]"
    store = place.store.endpoint or "AWS S3"
    parts = [
        f"back-up of the services that the environment names: the database of POLAR_DATABASE_URL, "
        f"bucket {place.store.bucket} of {store}"
    ]
    if place.tracking_url is None:
        parts.append("[yellow]without MLflow's database: set MLFLOW_BACKEND_STORE_URI[/]")
    if place.key_file is None:
        parts.append(
            "[yellow]without the key of the stored secrets: set POLAR_SECRET_KEY_FILE, or keep a "
            "copy of the key yourself[/]"
        )
    return "\n".join(parts)


def _show(line: str) -> None:
    out.print(f"  [dim]…[/] {line}", soft_wrap=True)


def _tell(taken: Taken, target: Path, seconds: float) -> None:
    manifest = taken.manifest
    for line in _contents(manifest):
        out.print(f"  [green]✓[/] {line}", soft_wrap=True)
    out.print(
        f"[bold green]backed up[/] to {escape(str(target))}: {megabytes(taken.size)} "
        f"in {seconds:.1f} s",
        soft_wrap=True,
    )
    if manifest.find(SECRETS):
        out.print(
            "[yellow]it holds the installation's secrets in plain text (mode 600): keep it as you "
            "keep them, or seal them with --passphrase-file[/]",
            soft_wrap=True,
        )
    if taken.defects:
        shown = [f"  {each.key} {each.problem}" for each in taken.defects[:_SHOWN]]
        raise fail(
            f"the back-up is as the installation is, and {len(taken.defects)} objects that its "
            "database refers to are missing or damaged there:\n" + "\n".join(shown),
            2,
        )


def _counted(manifest: Manifest) -> dict[str, Any]:
    objects = [entry.size for entry in manifest.files if entry.key is not None]
    return {
        "taken_at": manifest.taken_at.isoformat(),
        "objects": len(objects),
        "object_bytes": sum(objects),
        "sealed": manifest.find(SEALED_SECRETS) is not None,
    }


def _contents(manifest: Manifest) -> list[str]:
    objects = [entry for entry in manifest.files if entry.key is not None]
    others = [entry for entry in manifest.files if entry.key is None]
    size = megabytes(sum(entry.size for entry in objects))
    sealed = " (sealed)" if manifest.find(SEALED_SECRETS) else ""
    names = ", ".join(entry.file for entry in others if "/" not in entry.file)
    return [f"{names}{sealed}", f"{len(objects)} objects, {size}"]


def restore(
    source: Annotated[
        Path, typer.Argument(readable=False, help="A back-up: the folder or the file.")
    ],
    home: Annotated[
        Path | None, typer.Option(help="An empty or new folder: the data folder to be.")
    ] = None,
    passphrase_file: PassphraseFile = None,
    *,
    only_check: Annotated[
        bool, typer.Option("--check", help="Only check that the back-up is whole.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a back-up and restore it into an empty folder, for `polar up` to go on with."""
    if as_json:
        keep_stdout()
    began = time.monotonic()
    target = Home((home or default_home()).absolute())
    tell = lines(_show)
    try:
        archive = Archive(source)
        refuse_other_versions(archive.manifest)
        with told_to_end(), nullcontext() if only_check else alone(target, source):
            check(archive, tell)
            for line in _contents(archive.manifest):
                out.print(f"  [green]✓[/] {line}", soft_wrap=True)
            if only_check:
                out.print(f"[bold green]whole[/], taken at {archive.manifest.taken_at:%F %T} UTC")
                if as_json:
                    print_json({"whole": True, **_counted(archive.manifest)})
                return
            passphrase = seal.read_passphrase(passphrase_file) if passphrase_file else None
            live = restore_archive(archive, target, passphrase, tell)
    except _FAILURES as failure:
        raise fail(str(failure)) from None
    except Ended as end:
        whole = (target.path / "postgres").exists()
        left = f"{target.path} is restored" if whole else f"{target.path} is as it was"
        raise ended(end, left) from None
    if as_json:
        there = {"home": str(target.path), "live_attempts": live}
        print_json({**there, **_counted(archive.manifest)})
    _tell_restored(target, live, time.monotonic() - began)


def _tell_restored(home: Home, live: int, seconds: float) -> None:
    out.print(f"[bold green]restored[/] into {escape(str(home.path))} in {seconds:.1f} s")
    if live:
        out.print(f"{live} attempts ran when it was taken: their jobs go on from their checkpoints")
    out.print(f"  [bold]POLAR_HOME='{escape(str(home.path))}' polar up[/]", soft_wrap=True)
