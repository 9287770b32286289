"""Where a model to try lies: a folder, or a copy of what a service keeps.

Copies are named by the hash of their content and are checked against their manifest, so each is
fetched once and never is half of one.
"""

import fcntl
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from polar.manifest import verify
from polar.sdk import answers
from polar.sdk.client import Client
from polar.sdk.files import inside

_JOB = re.compile(r"job_[0-9A-HJKMNP-TV-Z]{26}")
_MODEL = "model/"


class NoModel(Exception):
    """There is no such model; the message says what there is."""


def local_folder(given: str) -> Path | None:
    """Return the model's folder in `given`, or in a run's folder; None where nothing lies there."""
    folder = Path(given)
    for found in (folder / "model", folder):
        if any((found / name).is_file() for name in ("config.json", "adapter_config.json")):
            return found
    return None


def is_job(given: str) -> bool:
    """Whether it is a job's id rather than a model's name."""
    return _JOB.fullmatch(given) is not None


def fetch_version(client: Client, given: str, cache: Path) -> Path:
    """Return a copy of `name[:version]`, the newest version where none is named."""
    name, _, number = given.partition(":")
    if number and not number.isdigit():
        raise NoModel(f"{given}: a version is a number, such as {name}:1")
    version = int(number) if number else _newest(client, name)
    detail = client.models.get(name, version)
    return fetched(
        cache / detail.manifest_sha256,
        lambda draft: client.models.download_folder(name, version, draft),
    )


def fetch_job(client: Client, job_id: str, cache: Path) -> Path:
    """Return a copy of the model that a job left; raises NoModel where it left none."""
    files = [each for each in client.jobs.artifacts(job_id) if each.path.startswith(_MODEL)]
    manifest = next((each for each in files if each.path == f"{_MODEL}manifest.json"), None)
    if manifest is None:
        raise NoModel(f"{job_id} has left no model: polar watch {job_id} says where it stands")
    return fetched(cache / manifest.sha256, lambda draft: _download(client, job_id, files, draft))


def _download(
    client: Client, job_id: str, files: Iterable[answers.ArtifactOut], draft: Path
) -> None:
    for file in files:
        client.jobs.download(job_id, file.path, inside(draft, file.path.removeprefix(_MODEL)))


def _newest(client: Client, name: str) -> int:
    page = client.models.version_page(name, limit=1)
    if not page.items:
        raise NoModel(f"there is no model {name}")
    return page.items[0].version


def fetched(folder: Path, fetch: Callable[[Path], object]) -> Path:
    """Return a copy, fetched where it is not here; it has its name once it is whole.

    Raises Mismatch where it is not. Of two at once the later one waits and takes the same copy.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process that holds it
        if not folder.is_dir():
            draft = folder.with_name(f"{folder.name}.new")
            shutil.rmtree(draft, ignore_errors=True)  # of one that was killed
            draft.mkdir()
            fetch(draft)
            verify(draft)
            draft.replace(folder)
    return folder
