"""`task: {type: mlm}`: masked language modelling on plain documents."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from trainer_core.spec.base import Strict, TaskBlock


class TokenizerTraining(Strict):
    """A new vocabulary for the kind of tokenizer that the model has."""

    vocab_size: int = Field(
        30_522, ge=16, le=1_000_000, description="Tokens of the new vocabulary, at most."
    )


class MlmTask(TaskBlock):
    """Continued pre-training of an encoder, or pre-training from a configuration."""

    without_effect_on_rows: ClassVar[frozenset[str]] = frozenset(
        {"mlm_probability", "pad_to_max_length", "from_config"}
    )

    type: Literal["mlm"]
    mlm_probability: float = Field(
        0.15,
        gt=0,
        lt=1,
        description="Chance that a token (or word) is asked for. Of these 80 % become the mask "
        "token, 10 % another token, 10 % stay; chosen anew in each epoch.",
    )
    whole_word_mask: bool = Field(False, description="Mask all tokens of a word, or none.")
    max_length: int | None = Field(
        None, ge=8, le=131_072, description="Tokens per row, special ones too. Default: 512."
    )
    line_by_line: bool = Field(
        False,
        description="A row for each text; those that are longer are treated as `data.over_length` "
        "says (default here: `split`). Else texts are joined and cut into full rows.",
    )
    pad_to_max_length: bool = Field(
        False, description="Pad every batch to `max_length` instead of to its longest row."
    )
    from_config: dict[str, Any] | None = Field(
        None,
        max_length=200,
        description="Train from scratch: fields of the model's configuration, over those of "
        "`model.name_or_path`, or with `model_type` instead of them. The tokenizer is that of "
        "`model.name_or_path`, or trained like it (`train_tokenizer`).",
    )
    train_tokenizer: TokenizerTraining | None = Field(
        None,
        description="From scratch: train the tokenizer on the training texts, with the algorithm, "
        "the normalization and the special tokens of the one of `model.name_or_path`.",
    )
