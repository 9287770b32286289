"""`task: {type: sft}`: supervised fine-tuning of a causal language model."""

from typing import ClassVar, Literal

from pydantic import Field

from trainer_core.spec.base import TaskBlock


class SftTask(TaskBlock):
    """Supervised fine-tuning of a causal language model."""

    without_effect_on_rows: ClassVar[frozenset[str]] = frozenset(
        {"padding_free", "pad_to_multiple_of", "loss_type", "kl_beta"}
    )

    type: Literal["sft"]
    loss_on: Literal["completion", "assistant", "last_assistant", "all"] | None = Field(
        None,
        description="Which tokens carry loss. Default: `assistant` for conversations, "
        "`completion` for prompt/completion and alpaca, `all` for plain text. Calls of tools are "
        "part of what the assistant says, their results are not; a message with `loss`, `train` or "
        "`weight` of 0 is left out.",
    )
    train_on_eot: Literal["turn", "last", "none", "all"] = Field(
        "turn",
        description="Which end-of-turn tokens carry loss: those of trained turns, the last of "
        "them, none (the model then learns no end), or every one of the conversation.",
    )
    max_length: int | None = Field(None, ge=8, le=1_048_576, description="Tokens per row.")
    packing: bool = Field(
        False,
        description="Put several samples into one row of `max_length` tokens, isolated from each "
        "other by their position ids.",
    )
    packing_strategy: Literal["bfd", "wrapped"] = Field(
        "bfd",
        description="`bfd`: whole samples, the longest first, so that rows are full; `wrapped`: "
        "one stream that is cut into full rows, whose samples see each other (for `loss_on: all`).",
    )
    padding_free: bool | None = Field(
        None,
        description="Lay a batch out as one row without padding, which needs an attention of "
        "variable length (`model.attn_implementation: flash_attention_2`). Default: where it runs.",
    )
    pad_to_multiple_of: int | None = Field(
        None, ge=2, le=65_536, description="Round the width of a batch up to a multiple of this."
    )
    eos_token: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="The token that ends texts and turns, where it is not the tokenizer's own; "
        "the published model stops at it.",
    )
    loss_type: Literal["nll", "chunked_nll", "dft"] = Field(
        "nll",
        description="`nll`: likelihood, always computed piece by piece, so that `chunked_nll` is "
        "the same; `dft`: likelihood weighted by the probability itself.",
    )
    kl_beta: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="Weight of the KL divergence from the model that is started from, on trained "
        "tokens: how closely the model keeps to it. 0: off.",
    )
    chat_template: str = Field(
        "auto",
        max_length=65_536,
        description="`auto` and `tokenizer`: the tokenizer's own template (`auto` falls back to "
        "ChatML where it has none); `chatml`, `llama3`, `gemma`, `phi3`, `mistral`, `zephyr`, "
        "`alpaca` or `vicuna`: that one; anything else is a Jinja template.",
    )
    default_system: str | None = Field(
        None, max_length=16_384, description="System message for conversations without one."
    )
