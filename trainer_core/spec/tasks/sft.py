"""`task: {type: sft}`: supervised fine-tuning of a causal language model."""

from typing import Literal

from pydantic import Field

from trainer_core.spec.base import TaskBlock


class SftTask(TaskBlock):
    """Supervised fine-tuning of a causal language model."""

    type: Literal["sft"]
    loss_on: Literal["completion", "assistant", "last_assistant", "all"] | None = Field(
        None,
        description="Which tokens carry loss. Default: `assistant` for conversations, "
        "`completion` for prompt/completion and alpaca, `all` for plain text.",
    )
    max_length: int | None = Field(None, ge=8, le=1_048_576, description="Tokens per row.")
    packing: bool = Field(
        False,
        description="Put several samples into one row of `max_length` tokens, isolated from each "
        "other by their position ids.",
    )
    chat_template: str = Field(
        "auto",
        max_length=65_536,
        description="`auto` and `tokenizer`: the tokenizer's own template (`auto` falls back to "
        "ChatML where it has none); anything else is a Jinja template.",
    )
    default_system: str | None = Field(
        None, max_length=16_384, description="System message for conversations without one."
    )
