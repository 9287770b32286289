"""`task: {type: text_classification}`: one label, several labels or a number for a text."""

from typing import Literal

from pydantic import Field

from trainer_core.spec.tasks.labels import LabelledTask


class TextClassificationTask(LabelledTask):
    """Classification of texts or pairs of texts, or regression on them."""

    type: Literal["text_classification"]
    problem_type: Literal[
        "single_label_classification", "multi_label_classification", "regression"
    ] = Field(
        "single_label_classification",
        description="`single_label_classification`: `label` is a name or a whole number; "
        "`multi_label_classification`: a list of them, or booleans for each label; `regression`: a "
        "number.",
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
