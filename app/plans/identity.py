"""What a spec's data and model are now, as far as the service can tell at once."""

import os
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.jobs.spec import JobSpec
from app.models import ModelVersion
from app.settings import Settings
from trainer_core.moved import present_place
from trainer_core.spec import ModelRef

MOST_FILES = 10_000
"""Of a folder that are looked at; one with more is told by these."""


def found_now(
    session: Session, project_id: str, spec: JobSpec, resolved: dict[str, Any], settings: Settings
) -> dict[str, Any]:
    """Return field → what tells its content from another: ids of uploads, versions of models, and
    size and time of files.

    What lies on a hub or in a store is told by its address alone: whether its content has changed
    is seen when it is prepared.
    """
    found: dict[str, Any] = {}
    for block in ("train", "validation"):
        sources = resolved["data"].get(block)
        for number, source in enumerate(sources if isinstance(sources, list) else []):
            found[f"data.{block}[{number}]"] = _source(source)
    found["model"] = _model(session, project_id, spec.model, settings)
    return found


def _source(source: dict[str, Any]) -> list[Any]:
    address = [source["source"], source["path"], source.get("revision")]
    return [*address, _files(Path(source["path"]))] if source["source"] == "folder" else address


def _model(session: Session, project_id: str, model: ModelRef, settings: Settings) -> list[Any]:
    address = [model.source, model.name_or_path, model.revision]
    if model.source == "folder":
        return [*address, _files(Path(present_place(model.name_or_path, settings.moved_folders)))]
    if model.source not in ("registry", "job"):
        return address
    query = select(ModelVersion.manifest_sha256).where(
        ModelVersion.project_id == project_id, ModelVersion.deleted_at.is_(None)
    )
    if model.source == "job":
        query = query.where(ModelVersion.job_id == model.name_or_path)
    else:
        query = query.where(ModelVersion.name == model.name_or_path)
        if model.revision is not None:
            query = query.where(ModelVersion.version == int(model.revision.removeprefix("v")))
    return [*address, session.scalar(query.order_by(ModelVersion.version.desc()).limit(1))]


def _files(root: Path) -> list[list[Any]]:
    """Name, size and time of a file, or of each file below a folder."""
    if not root.is_dir():
        return [_file(root, root.name)]
    found: list[list[Any]] = []
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            found.append(_file(path, path.relative_to(root).as_posix()))
            if len(found) == MOST_FILES:
                return found
    return found


def _file(path: Path, name: str) -> list[Any]:
    try:
        stat = path.stat()
    except OSError:  # a link that leads nowhere
        return [name, None, None]
    return [name, stat.st_size, str(stat.st_mtime_ns)]
