"""A job as OpenAI's clients read it, made of nothing but the job itself.

Changes at the other door (labels, name) cannot break it, and jobs that were submitted there are
seen here as well.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import ValidationError
from sqlalchemy.orm import Session

from app.jobs.lifecycle import FailureReason, Status
from app.models import Job
from app.openai import ids, store
from app.openai.mapping import LABELS
from app.openai.models import name_of, shown
from app.openai.schemas import (
    DpoHyperparametersOut,
    DpoMethod,
    FineTuningError,
    FineTuningJob,
    HyperparametersOut,
    JobStatus,
    MethodOut,
    SupervisedMethod,
    seconds,
)
from trainer_core.resolve import usual_learning_rate
from trainer_core.spec import TrainSpec

_STATUS: dict[Status, JobStatus] = {
    Status.QUEUED: "queued",
    Status.PROVISIONING: "queued",
    Status.RUNNING: "running",
    Status.FINALIZING: "running",
    Status.PAUSED: "paused",
    Status.SUCCEEDED: "succeeded",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}
_PARAM = {
    FailureReason.INVALID_DATA: "training_file",
    FailureReason.DATA_UNAVAILABLE: "training_file",
    FailureReason.MODEL_UNAVAILABLE: "model",
}
_DIGITS = 9  # of a multiplier: beyond them there is rounding


def of_jobs(session: Session, jobs: Sequence[Job]) -> list[FineTuningJob]:
    """Return the jobs as they look from outside."""
    beside = store.beside(session, [job.id for job in jobs])
    return [_of_job(job, beside) for job in jobs]


def _of_job(job: Job, beside: store.Beside) -> FineTuningJob:
    version = beside.versions.get(job.id)
    over = job.status == Status.SUCCEEDED
    hyperparameters = _hyperparameters(job)
    data, model = _block(job.resolved, "data"), _block(job.spec, "model")
    return FineTuningJob(
        id=ids.ftjob_id(job.id),
        created_at=seconds(job.created_at),
        finished_at=job.finished_at and seconds(job.finished_at),
        estimated_finish=_estimated_finish(job),
        status=_status(job),
        error=_error(job),
        model=shown(model) if model else "",
        fine_tuned_model=version and name_of(version),
        training_file=_file(data.get("train")) or "",
        validation_file=_file(data.get("validation")),
        result_files=[ids.results_id(job.id)] if over else [],
        hyperparameters=HyperparametersOut(**hyperparameters.model_dump(exclude={"beta"})),
        method=_method(hyperparameters),
        trained_tokens=_trained_tokens(job, beside.tokens.get(job.id)) if over else None,
        seed=_block(job.resolved, "training").get("seed", 0),
        metadata=metadata_of(job.labels),
        integrations=[],
        organization_id=job.project_id,
    )


def _block(spec: dict[str, Any], name: str) -> dict[str, Any]:
    """A block of a stored spec; empty where the version that wrote it had none: one such job must
    not hide the others of a page."""
    found = spec.get(name)
    return found if isinstance(found, dict) else {}


def metadata_of(labels: dict[str, Any]) -> dict[str, str]:
    """Return the metadata among a job's labels."""
    return {k.removeprefix(LABELS): str(v) for k, v in labels.items() if k.startswith(LABELS)}


def _status(job: Job) -> JobStatus:
    status = Status(job.status)
    if status is Status.QUEUED and job.prepared_key is None:
        return "validating_files"
    return _STATUS[status]


def _estimated_finish(job: Job) -> int | None:
    left = (job.progress or {}).get("eta_seconds")
    if job.status != Status.RUNNING or left is None:
        return None
    return seconds(datetime.now(UTC) + timedelta(seconds=float(left)))


def _error(job: Job) -> FineTuningError | None:
    if job.status != Status.FAILED:
        return None
    reason = FailureReason(job.reason or FailureReason.INTERNAL)
    message = job.message or f"the job has failed: {reason.value}"
    return FineTuningError(code=reason.value, message=message, param=_PARAM.get(reason))


def _file(sources: Any) -> str | None:
    """The file that a job reads; of several the first, of one that lies elsewhere its place."""
    if not isinstance(sources, list) or not sources:
        return None
    source = sources[0]
    stored = source["source"] in ("upload", "dataset")
    return ids.file_id(source["path"]) if stored else str(source["path"])


def _method(hyperparameters: HyperparametersOut) -> MethodOut:
    if isinstance(hyperparameters, DpoHyperparametersOut):
        return MethodOut(type="dpo", dpo=DpoMethod(hyperparameters=hyperparameters))
    return MethodOut(
        type="supervised", supervised=SupervisedMethod(hyperparameters=hyperparameters)
    )


def _hyperparameters(job: Job) -> HyperparametersOut:
    training = _block(job.resolved, "training")
    values: dict[str, Any] = {
        "n_epochs": _number(training.get("num_train_epochs")),
        "batch_size": _batch_size(job.resolved),
        "learning_rate_multiplier": _multiplier(job.resolved),
    }
    if job.task_type != "dpo":
        return HyperparametersOut(**values)
    return DpoHyperparametersOut(**values, beta=_number(_block(job.resolved, "task").get("beta")))


def _number(value: Any) -> float | Literal["auto"]:
    return value if isinstance(value, int | float) else "auto"


def _batch_size(resolved: dict[str, Any]) -> int | Literal["auto"]:
    training = _block(resolved, "training")
    rows = training.get("per_device_train_batch_size")
    rounds = training.get("gradient_accumulation_steps")
    processes = _block(resolved, "distributed").get("processes") or 1
    return rows * rounds * processes if rows and rounds else "auto"


def _multiplier(resolved: dict[str, Any]) -> float | Literal["auto"]:
    """The rate's share of the usual one; `auto` for a spec that this version does not take."""
    rate = _block(resolved, "training").get("learning_rate")
    try:
        usual = usual_learning_rate(TrainSpec.model_validate(resolved))
    except ValidationError:
        return "auto"
    return float(f"{rate / usual:.{_DIGITS}g}") if rate else "auto"


def _trained_tokens(job: Job, tokens: int | None) -> int | None:
    """Tokens of the prepared rows, times the epochs that were trained."""
    epochs = (job.progress or {}).get("epoch")
    return None if tokens is None or epochs is None else round(tokens * float(epochs))
