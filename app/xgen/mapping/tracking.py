"""Names of project and run, addresses of services, and fields that nobody knows."""

import re
from typing import Any

from app.xgen.mapping.draft import Draft
from app.xgen.urls import refusal_of_mlflow, refusal_of_store

REFERENCE = "xgen/run"
"""The label with `mlflow_run_id`. As the spec was given with it, it finds the job for `status` and
`stop`: the labels of a job may change, its spec does not."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 100
_LONGEST_REFERENCE = 255
_MOST_UNKNOWN = 50


def reference_of(spec: dict[str, Any]) -> str | None:
    """Return the `mlflow_run_id` that a job was made with."""
    found: str | None = spec.get("labels", {}).get(REFERENCE)
    return found


def describe(draft: Draft) -> None:
    """Fill the block `tracking`, the job's name and its labels."""
    form = draft.form
    if len(form.mlflow_run_id) > _LONGEST_REFERENCE - 5 or len(form.project_name) > 250:
        long = "project_name" if len(form.project_name) > 250 else "mlflow_run_id"
        draft.refuse(long, "is longer than 250 characters: shorten it")
    draft.put("labels", {REFERENCE: form.mlflow_run_id}, "mlflow_run_id")
    name = _NOT_IN_NAMES.sub("-", form.project_name).strip("._-")[:_LONGEST_NAME]
    if name:
        draft.put("name", name, "project_name")
    draft.put("tracking.mlflow.experiment", form.project_name, "project_name")
    draft.put("tracking.mlflow.run_name", form.mlflow_run_id, "mlflow_run_id")
    tags = {"xgen.model_commit_msg": form.model_commit_msg}
    draft.put("tracking.mlflow.tags", tags, "model_commit_msg")


def urls(draft: Draft) -> None:
    """Refuse addresses that are not this service's own: they come from a browser."""
    form, settings = draft.form, draft.around.settings
    if reason := refusal_of_store(form.minio_url, settings):
        draft.refuse("minio_url", reason)
    if reason := refusal_of_mlflow(form.mlflow_url, settings):
        draft.refuse("mlflow_url", reason)


def unknown(draft: Draft) -> None:
    """Say of fields that the form does not have that they have no effect."""
    names = list(draft.form.model_extra or {})
    for name in names[:_MOST_UNKNOWN]:
        draft.warn(name[:64], "has no effect: this service does not know this field")
    if len(names) > _MOST_UNKNOWN:
        more = len(names) - _MOST_UNKNOWN
        draft.warn("form", f"has {more} more fields that this service does not know")
