"""What a fine-tuning job is asked for with."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from trainer_core.spec import Strict

_Epochs = Literal["auto"] | Annotated[float, Field(gt=0, le=10_000)]
_Batch = Literal["auto"] | Annotated[int, Field(ge=1, le=1_000_000)]
_Multiplier = Literal["auto"] | Annotated[float, Field(gt=0, le=1_000_000)]
_Beta = Literal["auto"] | Annotated[float, Field(gt=0, le=1000)]
_FileId = Annotated[str, Field(min_length=1, max_length=100)]
MetadataKey = Annotated[str, Field(min_length=1, max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class Hyperparameters(Strict):
    """`auto`, or left out: as `POST /jobs` fills it in."""

    n_epochs: _Epochs | None = None
    batch_size: _Batch | None = Field(None, description="Rows of a step, over all devices.")
    learning_rate_multiplier: _Multiplier | None = Field(
        None, description="Of the learning rate that the job has without it."
    )


class DpoHyperparameters(Hyperparameters):
    """The same, and the strength of the reference."""

    beta: _Beta | None = None


class Supervised(Strict):
    """Of `supervised`."""

    hyperparameters: Hyperparameters | None = None


class Dpo(Strict):
    """Of `dpo`."""

    hyperparameters: DpoHyperparameters | None = None


class Method(Strict):
    """How the job learns; the block of its type may be left out."""

    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: Supervised | None = None
    dpo: Dpo | None = None
    reinforcement: dict[str, Any] | None = Field(None, description="Refused, with the reason.")


class JobRequest(Strict):
    """A fine-tuning job: `model` and `training_file` are required."""

    model: str = Field(
        min_length=1,
        max_length=1024,
        description="Id of a model on the hub, a published model (`name` or `name:version`, such "
        "as a job's `fine_tuned_model`), or a checkpoint.",
    )
    training_file: _FileId = Field(description="Id of an uploaded file.")
    validation_file: _FileId | None = None
    method: Method | None = Field(None, description="Default: supervised.")
    hyperparameters: Hyperparameters | None = Field(
        None, description="Older spelling of `method.supervised.hyperparameters`."
    )
    suffix: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="End of the model's name: letters, digits, `.`, `_` and `-`.",
    )
    seed: int | None = Field(None, ge=0, le=2**32 - 1)
    metadata: dict[MetadataKey, MetadataValue] | None = Field(
        None, max_length=16, description="Kept as labels, `openai/<key>`."
    )
    integrations: list[Any] | None = Field(None, description="Refused, with the reason.")
    polar: dict[str, Any] | None = Field(
        None,
        description="What this API has no word for: a JSON merge patch (RFC 7386) on the spec "
        "that `POST /jobs` would get, such as `adapter` or `compute`.",
    )


class FileQuery(BaseModel):
    """Paging of `GET /v1/files`."""

    after: str | None = Field(None, max_length=100, description="Id of the page's last file.")
    limit: int = Field(10_000, ge=1, le=10_000, description="Files of a page.")
    order: Literal["asc", "desc"] = Field("desc", description="By time; desc: newest first.")
    purpose: str | None = Field(
        None, max_length=100, description="Only these; everything here is for `fine-tune`."
    )


class JobListQuery(BaseModel):
    """Paging of `GET /v1/fine_tuning/jobs`; `metadata[key]=value` filters."""

    after: str | None = Field(None, max_length=100, description="Id of the page's last job.")
    limit: int = Field(20, ge=1, le=100, description="Jobs of a page.")
    metadata: Literal["null"] | None = Field(None, description="`null`: jobs without metadata.")


class EventQuery(BaseModel):
    """Paging of a job's events."""

    after: str | None = Field(None, max_length=100, description="Id of the page's last event.")
    limit: int = Field(20, ge=1, le=1000, description="Events of a page.")


class CheckpointQuery(BaseModel):
    """Paging of a job's checkpoints."""

    after: str | None = Field(None, max_length=100, description="Id of the page's last one.")
    limit: int = Field(10, ge=1, le=100, description="Checkpoints of a page.")
