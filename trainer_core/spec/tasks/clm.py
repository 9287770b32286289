"""`task: {type: clm}`: language modelling on plain documents."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from trainer_core.spec.base import TaskBlock


class ClmTask(TaskBlock):
    """Continued pre-training of a causal language model, or pre-training from a configuration."""

    without_effect_on_rows: ClassVar[frozenset[str]] = frozenset(
        {"embedding_learning_rate", "from_config"}
    )

    type: Literal["clm"]
    max_length: int | None = Field(
        None, ge=8, le=1_048_576, description="Tokens per row (block size). Default: 1024."
    )
    packing: Literal["wrapped", "bfd", "none"] = Field(
        "wrapped",
        description="`wrapped`: documents in one stream that is cut into full rows; `bfd`: whole "
        "documents fitted into rows, isolated from each other by their position ids; `none`: a row "
        "each. With the last two, documents that are longer than a row are treated as "
        "`data.over_length` says (default here: `split`).",
    )
    add_eos_token: bool = Field(True, description="End each document with EOS, so it is learned.")
    embedding_learning_rate: float | None = Field(
        None,
        gt=0,
        le=10,
        description="Learning rate of the embeddings and the LM head; 2 to 10 times below "
        "`training.learning_rate` keeps what they know. With an adapter name them in "
        "`adapter.modules_to_save`.",
    )
    from_config: dict[str, Any] | None = Field(
        None,
        max_length=200,
        description="Train from scratch: fields of the model's configuration, over those of "
        "`model.name_or_path`, or with `model_type` instead of them. The tokenizer is that of "
        "`model.name_or_path`.",
    )
