"""Data sets: registered or uploaded in versions, found for jobs, deleted when nobody reads them."""

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from app.datasets import store
from app.datasets.inspection import Inspection
from app.datasets.places import is_foreign, not_a_place
from app.datasets.receive import Received
from app.datasets.schemas import DatasetOut, RegisterDataset, UploadForm
from app.db import transaction
from app.errors import BadRequest, Conflict, FieldProblem, InvalidPayload, NotFound
from app.ids import new_id
from app.models import Dataset
from app.settings import get_settings
from app.storage import Store, StoreUnavailable, join_key

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?$")


@dataclass(frozen=True)
class Located:
    """Where a job finds a data set.

    `location` is a key of our own bucket (upload), a repository id (hub) or an `s3://` address.
    """

    dataset_id: str
    version: int
    source: str
    location: str
    file_name: str | None
    size: int | None
    sha256: str | None
    file_format: str | None


def locate(
    session: Session, project_id: str, dataset_id: str, version: str | None = None
) -> Located:
    """Find a data set, or another version (`2` or `v2`) of its name; raises NotFound."""
    found = find(session, project_id, dataset_id)
    if version is not None and version.removeprefix("v") != str(found.version):
        digits = version.removeprefix("v")
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
        other = store.get_version(session, project_id, found.name, number)
        if other is None:
            message = f"data set {found.name!r} has no version {version!r}"
            raise NotFound(message, "dataset_not_found")
        found = other
    return Located(
        dataset_id=found.id,
        version=found.version,
        source=found.source,
        location=found.location,
        file_name=found.file_name,
        size=found.size,
        sha256=found.sha256,
        file_format=found.file_format,
    )


def settle(session: Session, project_id: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return a spec's `data` with every data set named by what it is now.

    An upload becomes the id of the one version that is meant; a registered place becomes that
    place. Raises InvalidPayload for a data set or version that does not exist.
    """
    settled = dict(data)
    for block in ("train", "validation"):
        if isinstance(data.get(block), list):
            settled[block] = [
                _settled(session, project_id, source, f"/data/{block}/{number}")
                for number, source in enumerate(data[block])
            ]
    return settled


def _settled(
    session: Session, project_id: str, source: dict[str, Any], pointer: str
) -> dict[str, Any]:
    if source["source"] not in ("upload", "dataset"):
        return source
    try:
        found = locate(session, project_id, source["path"], source.get("revision"))
    except NotFound as error:
        raise _invalid(f"{pointer}/revision", error.message, source.get("revision")) from error
    if found.source == "upload":
        return {**source, "path": found.dataset_id, "revision": None}
    return {**source, "source": found.source, "path": found.location, "revision": None}


def find(session: Session, project_id: str, dataset_id: str) -> Dataset:
    """Return the data set; raises NotFound."""
    found = store.get_dataset(session, project_id, dataset_id)
    if found is None:
        message = f"there is no data set {dataset_id}; GET /datasets lists them"
        raise NotFound(message, "dataset_not_found")
    return found


def list_datasets(
    session: Session, project_id: str, name: str | None, cursor: str | None, limit: int
) -> Sequence[Dataset]:
    """Return a page, newest first; raises BadRequest for a cursor that is none."""
    if cursor is not None and not re.fullmatch(r"ds_[0-9A-Z]{26}", cursor):
        raise BadRequest(
            f"cursor {cursor[:60]!r} is not from a page of this list", "invalid_cursor"
        )
    return store.list_datasets(session, project_id, name, cursor, limit)


def register(session: Session, project_id: str, new: RegisterDataset, bucket: str) -> Dataset:
    """Write a reference to data elsewhere; raises InvalidPayload for an address that is none."""
    if new.source == "hub" and not _HUB_ID.match(new.location):
        raise _invalid("/location", "a repository id is `name` or `org/name`", new.location)
    if new.source == "s3":
        _check_s3(project_id, new.location, bucket)
    check_count(session, project_id)
    version = store.next_version(session, project_id, new.name, lock=True)
    row = store.NewDataset(new_id("ds"), project_id, new.name, version, new.source, new.location)
    return store.insert_dataset(session, row)


def _check_s3(project_id: str, location: str, bucket: str) -> None:
    if reason := not_a_place(location):
        raise _invalid("/location", reason, location)
    if is_foreign(project_id, location, bucket):
        raise _invalid("/location", "this part of the bucket belongs to another project", location)


def check_count(session: Session, project_id: str) -> None:
    """Raise Conflict for a project that has as many data sets as it may."""
    most = get_settings().datasets_max
    if store.count(session, project_id) >= most:
        message = f"this project has {most} data sets (POLAR_DATASETS_MAX): delete some"
        raise Conflict(message, "too_many_datasets")


def check_file_name(name: str) -> None:
    """Raise InvalidPayload for a file's name that is a path, or that no store could hold."""
    if "/" in name or "\\" in name or len(name.encode()) > 200:
        raise _invalid("/file_name", "a file's name has no folders and at most 200 bytes", name)
    try:
        join_key(name)
    except BadRequest as error:
        raise _invalid("/file_name", error.message, name) from error


def check_form(form: UploadForm, arrived: str) -> None:
    """Check what was said of an upload that has the sha256 `arrived`; raises InvalidPayload."""
    check_file_name(form.file_name)
    if form.sha256 and form.sha256.lower() != arrived:
        raise _invalid("/sha256", f"what arrived has sha256 {arrived}: send it again", form.sha256)


Also = Callable[[Session, Dataset], None]


def keep_upload(
    files: Store,
    project_id: str,
    form: UploadForm,
    received: Received,
    found: Inspection,
    *,
    also: Also = lambda *_: None,
) -> Dataset:
    """Put the file into the store and write its row; when that fails, neither is there.

    `also` writes what must become true together with the row. Raises InvalidPayload for a file that
    was refused, Conflict above the project's limit, and StoreUnavailable.
    """
    if found.refused:
        problems = [FieldProblem(pointer="/file", message=p.message) for p in found.refused]
        raise InvalidPayload(problems, "invalid_data")
    with transaction() as session:
        version = store.next_version(session, project_id, form.name)
    new = _row(project_id, form, received, found, version)
    files.put_file(new.location, received.path, sha256=received.sha256)
    try:
        return _commit(files, new, also)
    except BaseException:
        with contextlib.suppress(StoreUnavailable):
            files.delete_prefix(f"{project_id}/datasets/{new.id}/")
        raise


def _row(
    project_id: str, form: UploadForm, received: Received, found: Inspection, version: int
) -> store.NewDataset:
    dataset_id = new_id("ds")
    return store.NewDataset(
        id=dataset_id,
        project_id=project_id,
        name=form.name,
        version=version,
        source="upload",
        location=_key(project_id, dataset_id, version, form.file_name),
        file_name=form.file_name,
        size=received.size,
        sha256=received.sha256,
        file_format=found.file_format,
        row_format=found.row_format,
        columns=found.columns,
        rows=found.rows,
        problems=[vars(problem) for problem in found.problems],
    )


def _key(project_id: str, dataset_id: str, version: int, file_name: str) -> str:
    return join_key(project_id, "datasets", dataset_id, f"v{version}", file_name)


def _commit(files: Store, new: store.NewDataset, also: Also) -> Dataset:
    """Write the row; the object moves along when someone else took the version meanwhile."""
    while True:
        with transaction() as session:
            version = store.next_version(session, new.project_id, new.name, lock=True)
            if version == new.version:
                check_count(session, new.project_id)
                made = store.insert_dataset(session, new)
                also(session, made)
                return made
        key = _key(new.project_id, new.id, version, new.file_name or "")
        files.copy(new.location, key)
        files.delete(new.location)
        new = replace(new, version=version, location=key)


def mark_deleted(session: Session, project_id: str, dataset_id: str) -> Dataset:
    """Take the data set out of the lists; its files go with `delete_files` after the commit.

    Marking again is silent. Raises NotFound, and Conflict while an open job reads it.
    """
    found = store.get_dataset(session, project_id, dataset_id, deleted=True)
    if found is None:
        raise NotFound(f"there is no data set {dataset_id}", "dataset_not_found")
    user = store.open_user(session, found)
    if user is not None:
        message = f"job {user} reads this data set: cancel it, or wait for its end"
        raise Conflict(message, "dataset_in_use")
    store.mark_deleted(session, found.id)
    return found


def delete_files(files: Store, dataset: Dataset) -> None:
    """Delete the objects of an upload; doing it again is silent."""
    if dataset.source == "upload":
        files.delete_prefix(f"{dataset.project_id}/datasets/{dataset.id}/")


def show(dataset: Dataset, bucket: str) -> DatasetOut:
    """Return a data set as it looks from outside."""
    uploaded = dataset.source == "upload"
    here = f"/datasets/{dataset.id}"
    return DatasetOut.model_validate(
        {
            **{name: getattr(dataset, name) for name in DatasetOut.model_fields if name != "links"},
            "location": f"s3://{bucket}/{dataset.location}" if uploaded else dataset.location,
            "links": {"self": here, "preview": f"{here}/preview"},
        }
    )


def _invalid(pointer: str, message: str, value: str | None) -> InvalidPayload:
    problem = FieldProblem(pointer=pointer, message=message, value=value and value[:100])
    return InvalidPayload([problem])
