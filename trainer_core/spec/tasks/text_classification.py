"""`task: {type: text_classification}`: one label, several labels or a number for a text."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from trainer_core.spec.base import TaskBlock

LabelName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Weight = Annotated[float, Field(gt=0, le=1_000_000)]


class TextClassificationTask(TaskBlock):
    """Classification of texts or pairs of texts, or regression on them."""

    without_effect_on_rows: ClassVar[frozenset[str]] = frozenset(
        {"threshold", "class_weights", "label_smoothing_factor", "ignore_mismatched_sizes"}
    )

    type: Literal["text_classification"]
    problem_type: Literal[
        "single_label_classification", "multi_label_classification", "regression"
    ] = Field(
        "single_label_classification",
        description="`single_label_classification`: `label` is a name or a whole number; "
        "`multi_label_classification`: a list of them, or booleans for each label; `regression`: a "
        "number.",
    )
    label_names: list[LabelName] | None = Field(
        None,
        min_length=1,
        max_length=10_000,
        description="All labels; their order fixes the ids. Default: the labels of the training "
        "rows, sorted.",
    )
    label_separator: str | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="What stands between labels that are one text, as in CSV.",
    )
    max_length: int | None = Field(
        None, ge=4, le=131_072, description="Tokens per text (or pair). Default: 128."
    )
    threshold: float = Field(
        0.5, gt=0, lt=1, description="Several labels: probability above which one is predicted."
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
