"""Answers of `/v1`, with the names and types that OpenAI's clients know."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

Seconds = int
JobStatus = Literal[
    "validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"
]
_UNIX = "Unix time in seconds."


def seconds(time: datetime) -> Seconds:
    """Return a time as OpenAI's API tells it."""
    return int(time.timestamp())


class FileObject(BaseModel):
    """An uploaded file, or the metrics of a job."""

    id: str = Field(examples=["file-01JDXYZ0123456789ABCDEFGHJ"])
    object: Literal["file"] = "file"
    bytes: int
    created_at: Seconds = Field(description=_UNIX)
    expires_at: Seconds | None = Field(None, description="Null: files are kept until deleted.")
    filename: str = Field(examples=["shop.jsonl"])
    purpose: Literal["fine-tune", "fine-tune-results"]
    status: Literal["processed"] = Field(
        "processed", description="A file is read through before its upload is answered."
    )
    status_details: str | None = Field(
        None, description="The first row that a job's preparation will object to."
    )


class FileDeleted(BaseModel):
    """A file that is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class Page(BaseModel):
    """What pages share."""

    object: Literal["list"] = "list"
    first_id: str | None = Field(description="Of `data`; null for an empty page.")
    last_id: str | None = Field(description="Pass as `after` for the next page.")
    has_more: bool


class FilePage(Page):
    """Files."""

    data: list[FileObject]


class HyperparametersOut(BaseModel):
    """What the job trains with; `auto`: left to the machine that will take it."""

    n_epochs: float | Literal["auto"]
    batch_size: int | Literal["auto"] = Field(description="Rows of a step, over all devices.")
    learning_rate_multiplier: float | Literal["auto"]


class DpoHyperparametersOut(HyperparametersOut):
    """The same of preferences."""

    beta: float | Literal["auto"]


class SupervisedMethod(BaseModel):
    """Of `supervised`."""

    hyperparameters: HyperparametersOut


class DpoMethod(BaseModel):
    """Of `dpo`."""

    hyperparameters: DpoHyperparametersOut


class MethodOut(BaseModel):
    """How the job learns."""

    type: Literal["supervised", "dpo"]
    supervised: SupervisedMethod | None = None
    dpo: DpoMethod | None = None


class FineTuningError(BaseModel):
    """Why a job failed."""

    code: str = Field(examples=["invalid_data"])
    message: str
    param: str | None = Field(examples=["training_file"])


class FineTuningJob(BaseModel):
    """A fine-tuning job."""

    id: str = Field(examples=["ftjob-01JDXYZ0123456789ABCDEFGHJ"])
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: Seconds = Field(description=_UNIX)
    finished_at: Seconds | None
    estimated_finish: Seconds | None = Field(description="While it trains.")
    status: JobStatus
    error: FineTuningError | None
    model: str = Field(description="What it starts from.")
    fine_tuned_model: str | None = Field(
        description="The published version; `model` of a next job takes it as it stands."
    )
    training_file: str
    validation_file: str | None
    result_files: list[str] = Field(description="CSV files with the metrics of each step.")
    hyperparameters: HyperparametersOut
    method: MethodOut
    trained_tokens: int | None = Field(description="Tokens of all rows, as often as trained.")
    seed: int
    metadata: dict[str, str]
    integrations: list[Any] = Field(description="None are there.")
    organization_id: str = Field(description="The project.")


class FineTuningJobPage(Page):
    """Fine-tuning jobs, newest first."""

    data: list[FineTuningJob]


class FineTuningEvent(BaseModel):
    """Something that happened to a job."""

    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: Seconds = Field(description=_UNIX)
    level: Literal["info", "warn", "error"]
    type: Literal["message", "metrics"]
    message: str
    data: dict[str, Any] | None


class FineTuningEventPage(Page):
    """Events, newest first."""

    data: list[FineTuningEvent]


class CheckpointMetrics(BaseModel):
    """The newest measurements up to the checkpoint's step; null: not measured."""

    step: int
    train_loss: float | None = None
    train_mean_token_accuracy: float | None = None
    valid_loss: float | None = None
    valid_mean_token_accuracy: float | None = None
    full_valid_loss: float | None = None
    full_valid_mean_token_accuracy: float | None = None


class FineTuningCheckpoint(BaseModel):
    """A whole checkpoint of a job."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: Seconds = Field(description=_UNIX)
    fine_tuning_job_id: str
    fine_tuned_model_checkpoint: str = Field(
        description="`model` of a next job takes it, as long as the checkpoint is kept."
    )
    step_number: int
    metrics: CheckpointMetrics


class FineTuningCheckpointPage(Page):
    """Checkpoints, newest first."""

    data: list[FineTuningCheckpoint]


def ends(data: list[Any]) -> dict[str, str | None]:
    """Return `first_id` and `last_id` of a page's entries."""
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return {"first_id": first, "last_id": last}
