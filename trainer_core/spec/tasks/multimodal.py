"""`task: {type: multimodal}`: conversations about images, on a vision-language model."""

from typing import ClassVar, Literal

from pydantic import Field

from trainer_core.spec.base import TaskBlock


class MultimodalTask(TaskBlock):
    """Supervised fine-tuning of a vision-language model on texts with images."""

    without_effect_on_rows: ClassVar[frozenset[str]] = frozenset(
        {"freeze_vision_tower", "freeze_projector", "freeze_language_model"}
    )

    type: Literal["multimodal"]
    loss_on: Literal["completion", "assistant", "last_assistant", "all"] | None = Field(
        None,
        description="Which tokens carry loss; places of images never do. Default: `assistant` for "
        "conversations, `completion` for prompt/completion.",
    )
    train_on_eot: Literal["turn", "last", "none", "all"] = Field(
        "turn", description="Which end-of-turn tokens carry loss, as for `sft`."
    )
    max_length: int | None = Field(
        None,
        ge=8,
        le=1_048_576,
        description="Tokens per row, those of its images included; rows are never cut, because a "
        "cut could go through an image. Default: 2048.",
    )
    max_pixels: int | None = Field(
        None,
        ge=1_024,
        le=89_478_485,
        description="Images with more pixels are made smaller, their shape kept, before the "
        "model's processor sees them. Default: 589824 (768 × 768).",
    )
    freeze_vision_tower: bool = Field(True, description="Leave what sees as it is.")
    freeze_projector: bool = Field(
        True, description="Leave what turns what is seen into the language model's terms as it is."
    )
    freeze_language_model: bool = Field(False, description="Leave what reads and writes as it is.")
    chat_template: str = Field(
        "auto",
        max_length=65_536,
        description="`auto` and `tokenizer`: the model's own template; anything else is a Jinja "
        "template, which gets contents as lists of parts (`type` `text` or `image`).",
    )
    default_system: str | None = Field(
        None, max_length=16_384, description="System message for conversations without one."
    )
