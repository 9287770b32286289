"""`evaluation`, `checkpoint`, `tracking` and `publish`: what a run measures and keeps."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer_core.spec.base import MOST, Name, Strict


class Evaluation(Strict):
    """Loss on the validation rows; has no effect without them."""

    strategy: Literal["auto", "no", "steps", "epoch"] = "auto"
    steps: int | None = Field(None, ge=1, le=MOST)
    max_samples: int | None = Field(None, ge=1, le=MOST)

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
    save_steps: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST)] = "auto"
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
    max_merge_drift: float | None = Field(
        None,
        gt=0,
        le=10,
        description="Largest change that merging may make to a logit, as a share of the largest "
        "logit; above it the adapter is published alone, with a warning. Default: 0.001 for a base "
        "in fp32, 0.05 for one in 16 bits.",
    )
