"""`TrainSpec`: the single schema of what is trained, on every backend and target.

Only `task`, `model` and `data` are required. A field left out (None, or `auto`) is filled by
`trainer_core.resolve.resolve`. Names and defaults follow the libraries that users already know
(Transformers, TRL, PEFT).
"""

from collections.abc import Iterable
from functools import reduce
from operator import getitem
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
DataFormat = Literal["auto", "messages", "sharegpt", "alpaca", "prompt_completion", "text"]
TargetModules = Literal["all-linear"] | Annotated[list[str], Field(min_length=1)]
_MOST = 1_000_000_000  # of steps and rows: beyond it there is a slip of the keyboard


class Strict(BaseModel):
    """A block of the spec: unknown fields are refused, values are not coerced from strings."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _can_be_stored(cls, given: Any) -> Any:
        place = _nul_in(given)
        if place is None:
            return given
        problem = PydanticCustomError("value_error", "it holds a NUL character: take it out")
        found = reduce(getitem, place, given)
        details = InitErrorDetails(type=problem, loc=place, input=found)
        raise ValidationError.from_exception_data(cls.__name__, [details])


def _nul_in(value: Any) -> tuple[int | str, ...] | None:
    """Where a document has the character that no store takes; None: nowhere.

    One walk over what was given is much cheaper than to ask every field by itself.
    """
    if isinstance(value, str):
        return () if "\0" in value else None
    if isinstance(value, dict):
        if any(isinstance(name, str) and "\0" in name for name in value):
            return ()
        members: Iterable[tuple[int | str, Any]] = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    else:
        return None
    for name, member in members:
        inside = _nul_in(member)
        if inside is not None:
            return name, *inside
    return None


class SecretRef(Strict):
    """A secret by name; the value never stands in a spec."""

    secret: Name


class SftTask(Strict):
    """Supervised fine-tuning of a causal language model."""

    type: Literal["sft"]
    loss_on: Literal["completion", "assistant", "last_assistant", "all"] | None = Field(
        None,
        description="Which tokens carry loss. Default: `assistant` for conversations, "
        "`completion` for prompt/completion and alpaca, `all` for plain text.",
    )
    max_length: int | None = Field(None, ge=8, le=1_048_576, description="Tokens per row.")
    packing: bool = Field(
        False,
        description="Put several samples into one row of `max_length` tokens, isolated from each "
        "other by their position ids.",
    )
    chat_template: str = Field(
        "auto",
        max_length=65_536,
        description="`auto` and `tokenizer`: the tokenizer's own template (`auto` falls back to "
        "ChatML where it has none); anything else is a Jinja template.",
    )
    default_system: str | None = Field(
        None, max_length=16_384, description="System message for conversations without one."
    )


class ModelRef(Strict):
    """The model to start from."""

    source: Literal["hub", "folder", "s3", "registry", "job"] = "hub"
    name_or_path: str = Field(
        min_length=1,
        max_length=1024,
        description="hub: repository id; folder: an allowed folder; s3: `s3://bucket/prefix`; "
        "registry: name of a published model; job: id of a job.",
    )
    revision: str | None = Field(
        None, max_length=256, description="hub: commit, tag or branch; registry: version."
    )
    subfolder: str | None = Field(None, max_length=256)
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    attn_implementation: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    token: SecretRef | None = None

    @field_validator("subfolder")
    @classmethod
    def _stays_inside(cls, subfolder: str | None) -> str | None:
        path = PurePosixPath(subfolder or "")
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{subfolder!r} leads out of the model: name a folder inside of it")
        return subfolder


class DataSource(Strict):
    """One source of rows."""

    source: Literal["hub", "s3", "upload", "folder", "dataset"]
    path: str = Field(
        min_length=1,
        max_length=1024,
        description="hub: repository id; s3: `s3://bucket/key`; upload and dataset: data set id; "
        "folder: a file or folder below an allowed folder.",
    )
    subset: str | None = Field(None, max_length=256)
    split: str | None = Field(None, max_length=256)
    revision: str | None = Field(
        None, max_length=256, description="hub: commit, tag or branch; dataset: version."
    )
    format: DataFormat = "auto"
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Our column name → the source's, such as `{'prompt': 'question'}`.",
    )
    num_samples: int | None = Field(None, ge=1, le=_MOST, description="Take only the first N rows.")
    token: SecretRef | None = None


class SplitRatio(Strict):
    """Hold out a share of the training rows."""

    split_ratio: float = Field(gt=0, lt=1)


class Data(Strict):
    """What is trained and validated on, and what happens to rows that do not fit."""

    train: list[DataSource] = Field(min_length=1, max_length=64)
    validation: list[DataSource] | SplitRatio | None = None
    over_length: Literal["error", "truncate_right", "truncate_left", "drop"] = "error"
    on_bad_row: Literal["error", "drop"] = "error"
    max_bad_ratio: float = Field(
        0.05, ge=0, le=1, description="With `on_bad_row: drop`: the largest share dropped."
    )


class Training(Strict):
    """The loop; names as in Transformers' TrainingArguments."""

    learning_rate: float | None = Field(None, gt=0, le=10)
    num_train_epochs: float | None = Field(None, gt=0, le=10_000)
    max_steps: int | None = Field(None, ge=1, le=_MOST, description="Wins over `num_train_epochs`.")
    per_device_train_batch_size: int | None = Field(None, ge=1, le=65_536)
    per_device_eval_batch_size: int | None = Field(None, ge=1, le=65_536)
    gradient_accumulation_steps: int | None = Field(None, ge=1, le=65_536)
    optim: Literal["adamw_torch", "adamw_torch_fused", "adafactor", "sgd"] = "adamw_torch_fused"
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    adam_epsilon: float = Field(1e-8, gt=0, le=1)
    lr_scheduler_type: Literal[
        "linear", "cosine", "constant", "constant_with_warmup", "polynomial"
    ] = "cosine"
    warmup_steps: float = Field(
        0.1, ge=0, le=_MOST, description="Steps; a value below 1 is a share of all steps."
    )
    weight_decay: float = Field(0.0, ge=0, le=1000)
    max_grad_norm: float = Field(1.0, ge=0)
    seed: int = Field(42, ge=0, le=2**32 - 1)
    data_seed: int | None = Field(None, ge=0, le=2**32 - 1)
    gradient_checkpointing: bool | None = None
    neftune_noise_alpha: float | None = Field(None, gt=0, le=1000)
    logging_steps: int = Field(1, ge=1, le=_MOST)


class LoraAdapter(Strict):
    """Low-rank adapter (PEFT's LoraConfig)."""

    type: Literal["lora"]
    r: int = Field(16, ge=1, le=1024)
    lora_alpha: float = Field(32, gt=0, le=65_536)
    lora_dropout: float = Field(0.05, ge=0, lt=1)
    target_modules: TargetModules = "all-linear"
    modules_to_save: list[str] = Field(default_factory=list)
    use_rslora: bool = False
    bias: Literal["none", "all", "lora_only"] = "none"


class Distributed(Strict):
    """How the work is spread over devices."""

    strategy: Literal["auto", "none"] = "auto"


class Evaluation(Strict):
    """Loss on the validation rows; has no effect without them."""

    strategy: Literal["auto", "no", "steps", "epoch"] = "auto"
    steps: int | None = Field(None, ge=1, le=_MOST)
    max_samples: int | None = Field(None, ge=1, le=_MOST)

    @model_validator(mode="after")
    def _steps_belong_to_their_strategy(self) -> "Evaluation":
        if self.strategy == "steps" and self.steps is None:
            raise ValueError("strategy 'steps' needs `steps`")
        if self.strategy in ("no", "epoch") and self.steps is not None:
            raise ValueError(f"`steps` has no effect with strategy '{self.strategy}': leave it out")
        return self


class Checkpoint(Strict):
    """When the whole state is saved, and how much of it is kept."""

    save_strategy: Literal["steps", "epoch", "no"] = "steps"
    save_steps: Literal["auto"] | Annotated[int, Field(ge=1, le=_MOST)] = "auto"
    save_total_limit: int = Field(2, ge=2, le=1000)
    resume: Literal["auto", "never"] = "auto"


class MlflowTracking(Strict):
    """Where the run is found in MLflow."""

    experiment: str = Field("polar", min_length=1, max_length=250)
    run_name: str | None = Field(None, max_length=250)
    tags: dict[Annotated[str, Field(max_length=250)], Annotated[str, Field(max_length=5000)]] = (
        Field(default_factory=dict, max_length=50)
    )


class Tracking(Strict):
    """Experiment tracking."""

    mlflow: MlflowTracking = MlflowTracking()


class Publish(Strict):
    """What becomes of the finished model."""

    registry: bool = Field(True, description="Make a new version of the model `name`.")
    name: Name | None = Field(None, description="Default: the job's name.")
    merge: Literal["auto", "never", "always"] = Field(
        "auto", description="`always`: publish base and adapter merged; `auto`: the adapter alone."
    )


class TrainSpec(Strict):
    """What is trained: everything that the trainer knows about a job."""

    task: SftTask
    model: ModelRef
    data: Data
    training: Training = Training()
    adapter: LoraAdapter | None = None
    backend: Literal["auto", "hf"] = "auto"
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    distributed: Distributed = Distributed()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    tracking: Tracking = Tracking()
    publish: Publish = Publish()


class Paths(Strict):
    """Where a run reads and writes; all on the machine that it runs on."""

    work: str = Field(description="The attempt's folder.")
    prepared: str | None = Field(None, description="Prepared data; None: prepare first.")
    model: str | None = Field(None, description="Local folder of the model, already fetched.")
    data: dict[str, str] = Field(
        default_factory=dict,
        description="Sources already fetched: `train/0`, `validation/1` → local file or folder.",
    )
    resume_from: str | None = Field(None, description="A checkpoint folder with a manifest.")
    data_folders: list[str] | None = Field(
        None, description="Folders that `folder` sources may read; None: any (a user's own shell)."
    )
    model_folders: list[str] | None = None


class Launch(Strict):
    """Everything that one run of the trainer needs; `launch.json` in the attempt's folder."""

    attempt_id: str
    job_id: str
    job_name: str
    number: int = Field(1, ge=1, description="1 for a job's first attempt.")
    spec: TrainSpec
    paths: Paths
    threads: int | None = Field(None, ge=1, description="CPU threads reserved for the run.")
    devices: list[int] = Field(default_factory=list, description="CUDA devices; empty: CPU.")
    labels: dict[str, Any] = Field(default_factory=dict)
