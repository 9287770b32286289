"""`task: {type: grpo}`: learning from rewards for answers that the model itself gives."""

from typing import ClassVar, Literal

from pydantic import Field

from trainer_core.spec.base import TaskBlock
from trainer_core.spec.rewards import ExactMatch, Reward


class GrpoTask(TaskBlock):
    """Group relative policy optimization of a causal language model; names as in TRL's GRPOConfig.

    A group of answers to one prompt is compared with itself: what is better than its mean becomes
    likelier.
    """

    without_effect_on_rows: ClassVar[frozenset[str]] = frozenset(
        {
            "num_generations", "num_generations_eval", "temperature", "top_p", "top_k", "min_p",
            "repetition_penalty", "beta", "epsilon", "epsilon_high", "loss_type", "scale_rewards",
            "num_iterations", "importance_sampling_level", "mask_truncated_completions",
            "disable_dropout",
        }
    )  # fmt: skip

    type: Literal["grpo"]
    rewards: list[Reward] = Field(
        [ExactMatch(type="exact_match")],
        min_length=1,
        max_length=16,
        description="What judges an answer; their weighted sum is its reward.",
    )
    num_generations: int = Field(8, ge=2, le=1024, description="Answers to each prompt.")
    num_generations_eval: int | None = Field(
        None, ge=1, le=1024, description="Answers in evaluations. Default: `num_generations`."
    )
    max_length: int | None = Field(
        None, ge=8, le=1_048_576, description="Tokens of a prompt with its answer. Default: 1024."
    )
    max_completion_length: int | None = Field(
        None, ge=1, le=1_048_576, description="Tokens of an answer. Default: half of `max_length`."
    )
    temperature: float = Field(1.0, gt=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=1_000_000, description="0: all tokens.")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    beta: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="Weight of the KL divergence from the model that is started from. 0: off.",
    )
    epsilon: float = Field(0.2, gt=0, lt=1, description="How far one step may move a probability.")
    epsilon_high: float | None = Field(
        None, gt=0, le=1000, description="The same upwards, where it differs from `epsilon`."
    )
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = Field(
        "dapo", description="What a token's loss is divided by: see TRL's GRPOConfig."
    )
    scale_rewards: Literal["group", "batch", "none"] = Field(
        "group", description="By whose spread advantages are divided."
    )
    num_iterations: int = Field(
        1, ge=1, le=1000, description="Steps that are taken on the same answers."
    )
    importance_sampling_level: Literal["token", "sequence"] = "token"
    mask_truncated_completions: bool = Field(
        False, description="Learn nothing of answers that were cut at `max_completion_length`."
    )
    disable_dropout: bool = True
    eos_token: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="The token that ends answers, where it is not the tokenizer's own.",
    )
    chat_template: str = Field(
        "auto",
        max_length=65_536,
        description="As for `sft`: `auto`, `tokenizer`, a name or a Jinja template.",
    )
    default_system: str | None = Field(
        None, max_length=16_384, description="System message for conversations without one."
    )

    @property
    def prompt_length(self) -> int | None:
        """The most tokens of a prompt; None while it is open."""
        if self.max_length is None or self.max_completion_length is None:
            return None
        return self.max_length - self.max_completion_length
