"""`task: {type: kto}`: learning from answers that are called desirable or undesirable."""

from typing import ClassVar, Literal

from pydantic import Field

from trainer_core.spec.tasks.compared import ComparedTask


class KtoTask(ComparedTask):
    """Kahneman-Tversky optimization of a causal language model; names as in TRL's KTOConfig."""

    without_effect_on_rows: ClassVar[frozenset[str]] = frozenset(
        {
            "beta", "loss_type", "desirable_weight", "undesirable_weight",
            *ComparedTask.of_the_reference,
        }
    )  # fmt: skip

    type: Literal["kto"]
    beta: float = Field(0.1, gt=0, le=1000, description="How closely the reference is kept to.")
    loss_type: Literal["kto", "apo_zero_unpaired"] = Field(
        "kto",
        description="`kto` compares rewards with an estimate of the divergence, made with answers "
        "of other rows; `apo_zero_unpaired` does without it.",
    )
    desirable_weight: float = Field(
        1.0, gt=0, le=1_000_000, description="Weight of desirable answers, where they are rare."
    )
    undesirable_weight: float = Field(1.0, gt=0, le=1_000_000)
