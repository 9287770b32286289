"""Names of models: a text for `model` of a spec, and back again."""

import re
from typing import Any

from sqlalchemy.orm import Session

from app.errors import FieldProblem, InvalidPayload
from app.models import ModelVersion
from app.openai import ids, store
from app.settings import get_settings

_VERSIONED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]{0,127}):v?([0-9]{1,9})$")
_CHECKPOINT = re.compile(r"^(.+):ckpt-step-([0-9]{1,9})$")
_PLACE = re.compile(r"/jobs/(job_[0-9A-Z]{26})/[^/]+/checkpoints/step-0*([0-9]+)/?$")
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_BASE = 56


def name_of(version: ModelVersion) -> str:
    """Return the name of a published version."""
    return f"{version.name}:{version.version}"


def checkpoint_name(job_id: str, step: int) -> str:
    """Return the name of a job's checkpoint."""
    return f"{ids.ftjob_id(job_id)}:ckpt-step-{step}"


def model_of(session: Session, project_id: str, name: str) -> dict[str, Any]:
    """Return the `model` block for a name; raises InvalidPayload for a checkpoint that is gone.

    Whether the model exists and may be read is checked as for every job.
    """
    if found := _CHECKPOINT.match(name):
        return _checkpoint(session, project_id, found[1], int(found[2]))
    if name.startswith("/"):
        return {"source": "folder", "name_or_path": name}
    if name.startswith("s3://"):
        return {"source": "s3", "name_or_path": name}
    if found := _VERSIONED.match(name):
        return {"source": "registry", "name_or_path": found[1], "revision": found[2]}
    if store.has_model(session, project_id, name):
        return {"source": "registry", "name_or_path": name}
    return {"source": "hub", "name_or_path": name}


def _checkpoint(session: Session, project_id: str, job: str, step: int) -> dict[str, Any]:
    job_id = ids.job_of_name(job)
    row = job_id and store.find_checkpoint(session, project_id, job_id, step)
    if not row:
        message = (
            f"job {job[:100]} keeps no checkpoint of step {step} (any more): GET "
            "/v1/fine_tuning/jobs/{id}/checkpoints lists those that it keeps"
        )
        raise InvalidPayload([FieldProblem(pointer="/model", message=message)], "model_not_found")
    return {"source": "s3", "name_or_path": f"s3://{get_settings().s3_bucket}/{row.prefix}"}


def shown(model: dict[str, Any]) -> str:
    """Return the name of a spec's model, as `model_of` understands it."""
    name = str(model["name_or_path"])
    source = model.get("source", "hub")
    if source == "registry" and model.get("revision"):
        return f"{name}:{str(model['revision']).removeprefix('v')}"
    if source == "s3" and (found := _PLACE.search(name)):
        return checkpoint_name(found[1], int(found[2]))
    return name


def new_name(model: str, suffix: str | None) -> str:
    """Return the name under which a job's model is published: `ft-<base>`, and the suffix.

    A job with the same two makes the next version of it.
    """
    base = _CHECKPOINT.sub(r"\1", model)
    base = _VERSIONED.sub(r"\1", base).rstrip("/").rpartition("/")[2]
    base = _ODD.sub("-", base).strip("-.").removeprefix("ft-")[:_LONGEST_BASE] or "model"
    return f"ft-{base}" if suffix is None else f"ft-{base}-{suffix}"
