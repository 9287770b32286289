"""What the blocks of classifying tasks share: names, weights and smoothing of labels."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from trainer_core.spec.base import TaskBlock

LabelName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Weight = Annotated[float, Field(gt=0, le=1_000_000)]


class LabelledTask(TaskBlock):
    """A task that learns labels; those are told apart by their names."""

    without_effect_on_rows: ClassVar[frozenset[str]] = frozenset(
        {"threshold", "class_weights", "label_smoothing_factor", "ignore_mismatched_sizes"}
    )

    label_names: list[LabelName] | None = Field(
        None,
        min_length=1,
        max_length=10_000,
        description="All labels; their order fixes the ids. Default: the labels of the training "
        "rows, sorted.",
    )
    class_weights: Literal["none", "balanced"] | list[Weight] = Field(
        "none",
        description="How much each label counts in the loss: `balanced` by how rare it is, or a "
        "list in the order of `label_names`.",
    )
    label_smoothing_factor: float = Field(0.0, ge=0, lt=1)
    ignore_mismatched_sizes: bool = Field(
        False, description="Replace the head of a model that was made for another number of labels."
    )
