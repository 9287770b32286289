"""`task: {type: dpo}`: learning from pairs of a preferred and a rejected answer."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainer_core.spec.tasks.compared import ComparedTask

LossType = Literal[
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot",
    "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm",
]  # fmt: skip
LossWeight = Annotated[float, Field(gt=0, le=1_000_000)]


class DpoTask(ComparedTask):
    """Direct preference optimization of a causal language model; names as in TRL's DPOConfig."""

    without_effect_on_rows: ClassVar[frozenset[str]] = frozenset(
        {
            "beta", "loss_type", "loss_weights", "label_smoothing", "ld_alpha", "f_divergence_type",
            "f_alpha_divergence_coef", "use_weighting", "discopop_tau",
            *ComparedTask.of_the_reference,
        }
    )  # fmt: skip

    type: Literal["dpo"]
    beta: float = Field(0.1, gt=0, le=1000, description="How closely the reference is kept to.")
    loss_type: list[LossType] = Field(
        ["sigmoid"],
        min_length=1,
        max_length=15,
        description="Losses that are added up; `sft` adds the likelihood of the chosen answer.",
    )
    loss_weights: list[LossWeight] | None = Field(
        None, description="A weight for each of `loss_type`. Default: 1 each."
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    ld_alpha: float | None = Field(
        None, ge=0, le=1, description="LD-DPO: weight of tokens beyond the shorter answer's length."
    )
    f_divergence_type: Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"] = (
        "reverse_kl"
    )
    f_alpha_divergence_coef: float = Field(0.5, ge=-100, le=100)
    use_weighting: bool = Field(False, description="WPO: weigh pairs by their likelihood.")
    discopop_tau: float = Field(0.05, gt=0, le=1000)
