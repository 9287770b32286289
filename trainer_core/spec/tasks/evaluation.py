"""`task: {type: evaluation}`: a model is measured as it is, and nothing is trained."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainer_core.spec.base import TaskBlock
from trainer_core.spec.model import ModelRef
from trainer_core.spec.tasks.sft import SftTask

if TYPE_CHECKING:
    from trainer_core.spec.task import TrainedTask


class EvaluationTask(TaskBlock):
    """Measuring a base or a published model on the validation rows, or on all rows without them."""

    type: Literal["evaluation"]
    of: "TrainedTask" = Field(
        default_factory=lambda: SftTask(type="sft"),
        description="The task that the model is for: its fields say how rows are read and what is "
        "measured of them, as in training. Default: sft.",
    )
    baseline: ModelRef | None = Field(
        None, description="Another model, which the first one is compared with row by row."
    )

    @property
    def template(self) -> str | None:
        """That of the task which is evaluated."""
        return self.of.template
