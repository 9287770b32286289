"""`evaluation`, `checkpoint`, `tracking` and `publish`: what a run measures and keeps."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from trainer_core.spec.base import MOST, Name, Strict
from trainer_core.spec.hub import HubPush

MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/@-]{0,127}$")]


class Generation(Strict):
    """Answers that the model writes to prompts of the validation rows; names as in Transformers."""

    num_samples: int = Field(
        64, ge=1, le=1000, description="Of the first rows; the answers are kept in the report."
    )
    max_new_tokens: int = Field(256, ge=1, le=8192)
    do_sample: bool = Field(False, description="False: always the likeliest token.")
    temperature: float = Field(1.0, gt=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)


class Evaluation(Strict):
    """What is measured on the validation rows; has no effect without them."""

    strategy: Literal["auto", "no", "steps", "epoch"] = "auto"
    steps: int | None = Field(None, ge=1, le=MOST)
    max_samples: int | None = Field(None, ge=1, le=MOST)
    compare_base: bool = Field(
        False,
        description="Measure the model before the first step too, so that what training changed "
        "is known: the report then has an interval for each difference.",
    )
    metrics: list[MetricName] | None = Field(
        None,
        min_length=1,
        max_length=32,
        description="Of the report at the end; default: all that the rows allow. Installed "
        "packages add some by the entry point group `polar.metrics`.",
    )
    generation: Generation | None = Field(
        None, description="For metrics of text: exact_match, rouge1, rouge2, rougeL, bleu."
    )
    backend: Literal["hf"] = Field("hf", description="What runs the model.")

    @model_validator(mode="after")
    def _steps_belong_to_their_strategy(self) -> "Evaluation":
        if self.strategy == "steps" and self.steps is None:
            raise ValueError("strategy 'steps' needs `steps`")
        if self.strategy in ("no", "epoch") and self.steps is not None:
            raise ValueError(f"`steps` has no effect with strategy '{self.strategy}': leave it out")
        return self


class EarlyStopping(Strict):
    """When training ends before its last step; names as in Transformers' EarlyStoppingCallback."""

    patience: int = Field(
        3, ge=1, le=10_000, description="Evaluations in a row that bring no improvement."
    )
    threshold: float = Field(
        0.0, ge=0, le=1e6, description="What must be gained on the best value to be one."
    )


class Checkpoint(Strict):
    """When the whole state is saved, how much of it is kept, and which model is published."""

    save_strategy: Literal["steps", "epoch", "no"] = "steps"
    save_steps: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST)] = "auto"
    save_total_limit: int = Field(2, ge=2, le=1000)
    resume: Literal["auto", "never"] = "auto"
    load_best_model_at_end: bool = Field(
        False, description="Publish the best evaluation's weights instead of the last step's."
    )
    metric_for_best_model: MetricName | None = Field(
        None, description="What is compared, such as `loss` or `accuracy`. Default: `loss`."
    )
    greater_is_better: bool | None = Field(
        None, description="Default: as the metric is; losses and errors are better when lower."
    )
    early_stopping: EarlyStopping | None = None


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


class Gate(Strict):
    """What a model must reach to be published; measured on the validation rows."""

    metric: MetricName = Field(description="Such as `loss` or `accuracy`.")
    threshold: float | None = Field(
        None, description="The value to reach: at least, or at most where lower is better."
    )
    min_improvement: float | None = Field(
        None,
        description="What must be gained on the model before the first step; 0: not be worse.",
    )

    @model_validator(mode="after")
    def _demands_something(self) -> "Gate":
        if self.threshold is None and self.min_improvement is None:
            raise ValueError("it demands nothing: give `threshold`, `min_improvement` or both")
        return self


class Publish(Strict):
    """What becomes of the finished model."""

    registry: bool = Field(True, description="Make a new version of the model `name`.")
    name: Name | None = Field(None, description="Default: the job's name.")
    merge: Literal["auto", "never", "always"] = Field(
        "auto",
        description="`always`: publish base and adapter merged; `never`: the adapter alone; "
        "`auto`: the adapter, but merged where it holds whole modules or new tokens, which servers "
        "of adapters such as vLLM refuse.",
    )
    max_merge_drift: float | None = Field(
        None,
        gt=0,
        le=10,
        description="Largest change that merging may make to a logit, as a share of the largest "
        "logit; above it the adapter is published alone, with a warning. Default: 0.001 for a base "
        "in fp32, 0.05 for one in 16 bits.",
    )
    hub: HubPush | None = Field(
        None, description="Push the model to a hub as well, once it is published."
    )
    gate: Gate | None = Field(
        None, description="A model that does not reach it is not published, and the job fails."
    )
