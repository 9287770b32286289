"""One step of the MLflow mirror: take a due run, carry what is new, close it when the job ended.

Slow work happens between transactions. Doing a step twice changes nothing: runs are found by the
job's tag, MLflow drops repeated metric points, and a closed run is never opened or downgraded.
"""

import contextlib
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

from app.db import transaction
from app.errors import ServiceError
from app.jobs.lifecycle import TERMINAL, Status
from app.storage import Store
from app.tracking import convert, store
from app.tracking.client import Mlflow, MlflowError, MlflowRefused
from app.tracking.store import Due

JOB_TAG = "polar.job_id"
EVERY = 2.0
SMALL_FILE = 256 * 1024
_log = logging.getLogger(__name__)


def mirror_one(mlflow: Mlflow, objects: Store) -> bool:
    """Bring the run that is due up to date; returns False when none is.

    An MLflow or store that does not answer is noted in the run's row and tried again, ever later:
    no job depends on it.
    """
    with transaction() as session:
        due = store.claim_due(session)
    if due is None:
        return False
    try:
        _carry(mlflow, objects, due)
    except (MlflowError, ServiceError) as error:
        _failed(due, error)
    return True


def _failed(due: Due, error: MlflowError | ServiceError) -> None:
    if due.run_id is not None and isinstance(error, MlflowRefused) and _is_gone(error):
        # Someone deleted the run: making another behind their back would be wrong.
        with transaction() as session:
            store.save_closed(session, due.job_id, "DELETED", str(error))
        return
    with transaction() as session:
        wait = store.save_failure(session, due, str(error))
    _log.warning("MLflow mirror of %s: %s; again in %.0f s", due.job_id, error, wait)


def _is_gone(error: MlflowRefused) -> bool:
    return error.code == "RESOURCE_DOES_NOT_EXIST" or "must be in the 'active' state" in str(error)


@contextlib.contextmanager
def _refusal_noted(due: Due, what: str) -> Iterator[None]:
    """Let the run be closed even when MLflow refuses a part of it for good."""
    try:
        yield
    except MlflowRefused as error:
        if _is_gone(error):
            raise
        _log.warning("MLflow mirror of %s: %s refused: %s", due.job_id, what, error)


def _carry(mlflow: Mlflow, objects: Store, due: Due) -> None:
    run_id = due.run_id or _open(mlflow, due)
    with transaction() as session:
        events, reached = store.metrics_after(session, due)
    with _refusal_noted(due, "metrics"):
        mlflow.log_metrics(run_id, convert.metric_points(events))
    ended = Status(due.status) in TERMINAL and reached >= due.last_seq
    if ended:
        _close(mlflow, objects, due, run_id)
    with transaction() as session:
        store.save_progress(session, due.job_id, reached, 0 if reached < due.last_seq else EVERY)
        if ended:
            store.save_closed(session, due.job_id, convert.CLOSED[Status(due.status)])


def _open(mlflow: Mlflow, due: Due) -> str:
    """Get or make the job's run, with its tags and parameters; returns its id."""
    tracking = due.resolved.get("tracking", {}).get("mlflow", {})
    experiment = mlflow.experiment(str(tracking.get("experiment", "polar")))
    run_id = mlflow.find_run(experiment, JOB_TAG, due.job_id)
    params, cut = convert.shorten(convert.flatten(due.resolved), convert.MAX_PARAM)
    if run_id is None:
        tags = {
            **tracking.get("tags", {}),
            **{f"polar.label.{key}": str(value) for key, value in due.labels.items()},
            JOB_TAG: due.job_id,
            "polar.project": due.project,
            "mlflow.source.name": "polar",
        }
        if cut:
            tags["polar.truncated_params"] = ", ".join(cut)
        tags, _ = convert.shorten(tags, convert.MAX_TAG)
        start = convert.milliseconds(due.started_at or due.created_at)
        run_id = mlflow.create_run(experiment, tracking.get("run_name") or due.name, start, tags)
    with _refusal_noted(due, "parameters"):
        mlflow.log_params(run_id, params)
    with transaction() as session:
        store.save_run(session, due.job_id, experiment, run_id)
    return run_id


def _close(mlflow: Mlflow, objects: Store, due: Due, run_id: str) -> None:
    """Hand over what is kept and close the run, unless it is closed already."""
    info = mlflow.run_info(run_id)
    if info.get("lifecycle_stage") == "deleted":
        raise MlflowRefused("RESOURCE_DOES_NOT_EXIST", f"run {run_id} was deleted")
    tags = {"polar.attempts": str(due.attempts), "polar.status": due.status}
    if due.reason:
        tags |= {"polar.reason": due.reason, "polar.message": (due.message or "")[:1000]}
    mlflow.set_tags(run_id, tags)
    if due.status == Status.SUCCEEDED:
        _hand_over(mlflow, objects, due, run_id, str(info["artifact_uri"]))
    if info.get("status") != "FINISHED":
        ended = due.finished_at or datetime.now(UTC)
        mlflow.end_run(run_id, convert.CLOSED[Status(due.status)], convert.milliseconds(ended))


def _hand_over(mlflow: Mlflow, objects: Store, due: Due, run_id: str, artifact_uri: str) -> None:
    with transaction() as session:
        files = store.small_files(session, due.job_id, SMALL_FILE)
        model = store.published(session, due.job_id)
    with _refusal_noted(due, "artifacts"):
        for path, key in files:
            mlflow.put_artifact(artifact_uri, path, objects.get_bytes(key, SMALL_FILE))
    if model is None:
        return
    name = model.name if due.project == "default" else f"{due.project}.{model.name}"
    tags = {
        JOB_TAG: due.job_id,
        "polar.version": str(model.version),
        "polar.kind": model.kind,
        "polar.base_model": model.base_model,
        "polar.manifest_sha256": model.manifest_sha256,
    }
    source = f"s3://{objects.bucket}/{model.prefix.rstrip('/')}"
    with _refusal_noted(due, "model version"):
        number = mlflow.model_version(name, source, run_id, tags)
        mlflow.set_tags(run_id, {"polar.model": f"{name} v{number}"})
