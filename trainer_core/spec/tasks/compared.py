"""What the blocks of tasks share that compare a model with a reference: how that is made."""

from typing import ClassVar, Literal

from pydantic import Field

from trainer_core.spec.base import TaskBlock
from trainer_core.spec.model import ModelRef


class ComparedTask(TaskBlock):
    """A task whose answers are compared with those of a reference; names as in TRL."""

    of_the_reference: ClassVar[frozenset[str]] = frozenset(
        {
            "reference", "ref_model", "precompute_ref_batch_size", "sync_ref_model",
            "ref_model_mixup_alpha", "ref_model_sync_steps", "disable_dropout",
        }
    )  # fmt: skip
    """Fields without effect on rows."""

    reference: Literal["adapter_disabled", "model", "precomputed"] | None = Field(
        None,
        description="What answers are compared with: the model without its adapter (default with "
        "one), a model beside it (default without one), or its values, computed before training.",
    )
    ref_model: ModelRef | None = Field(
        None, description="The reference, where it is not the model that is started from."
    )
    precompute_ref_batch_size: int | None = Field(None, ge=1, le=65_536)
    sync_ref_model: bool = Field(
        False, description="TR-DPO: let the reference follow the model from time to time."
    )
    ref_model_mixup_alpha: float = Field(0.6, gt=0, le=1)
    ref_model_sync_steps: int = Field(512, ge=1, le=1_000_000_000)
    disable_dropout: bool = True
    max_length: int | None = Field(
        None, ge=8, le=1_048_576, description="Tokens of a prompt with its answer. Default: 1024."
    )
    chat_template: str = Field(
        "auto",
        max_length=65_536,
        description="As for `sft`: `auto`, `tokenizer`, a name or a Jinja template.",
    )
    default_system: str | None = Field(
        None, max_length=16_384, description="System message for conversations without one."
    )
