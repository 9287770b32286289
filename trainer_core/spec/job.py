"""`JobSpec`: what a job is submitted with: a TrainSpec, and how the job itself is treated."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trainer_core.spec.base import Strict
from trainer_core.spec.train import TrainSpec

JobName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
LabelValue = Annotated[str, Field(max_length=512)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=50)]
PlanId = Annotated[str, StringConstraints(pattern=r"^plan_[0-9A-HJKMNP-TV-Z]{26}$")]
Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,6}(s|m|h|d)$")]


class Gpus(Strict):
    """The devices that a job wants."""

    name: str | None = Field(None, max_length=128, description="Part of the device's name.")
    count: int = Field(1, ge=1, le=64)
    min_memory_gb: float | None = Field(None, gt=0)


class Compute(Strict):
    """Where the job runs."""

    target: Literal["auto", "local", "fake"] = "auto"
    gpus: Gpus | None = Field(
        None, description="Default: one GPU where there is one, else the CPU."
    )
    max_runtime: Duration | None = Field(
        None, description="Running time after which the job fails with `time_limit`: `8h`."
    )


class Retry(Strict):
    """Automatic retries after losses that are not the job's own fault."""

    max_attempts: int = Field(3, ge=1, le=20)


class JobSpec(TrainSpec):
    """A training job; only `task`, `model` and `data` are required."""

    name: JobName | None = Field(None, description="Default: made from the task's type.")
    labels: Labels = Field(default_factory=dict)
    priority: int = Field(0, ge=-100, le=100, description="Higher is placed first.")
    compute: Compute = Compute()
    retry: Retry = Retry()
    plan_id: PlanId | None = Field(
        None,
        description="The plan that this job carries out: refused where the spec, the data or the "
        "model is not what was planned.",
    )

    def train_spec(self) -> TrainSpec:
        """Return the part that the trainer knows."""
        fields = TrainSpec.model_fields
        given = self.model_fields_set & fields.keys()
        # Everything was validated as part of this spec: no need to do it twice.
        return TrainSpec.model_construct(given, **{name: getattr(self, name) for name in fields})
